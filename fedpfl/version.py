"""The version, and where the repository is, which every part of the package can import."""

__version__ = "0.1.0"
# https://github.com/OWNER/NAME; after a change: fedpfl config --update. While it is empty, nothing links to it.
REPOSITORY = ""
