"""The version, which every part of the package can import."""

__version__ = "0.1.0"
