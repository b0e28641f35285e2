"""The live page: runs as they grow, and a bench's boards, in a browser."""
