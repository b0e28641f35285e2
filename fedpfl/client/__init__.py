"""A client: its part of a round, and its personal arrays on disk."""
