"""The Python interface: what ``import fedpfl`` offers to scripts and notebooks."""
