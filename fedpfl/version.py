"""The version, where the repository is, and the versions of Flower, which every part of the package can import."""

__version__ = "0.1.0"
# https://github.com/OWNER/NAME; after a change: fedpfl config --update. While it is empty, nothing links to it.
REPOSITORY = ""

# The versions of Flower that fedpfl was tested with, as in its own pyproject.toml.
FLOWER = "flwr[simulation]>=1.41,<1.43"
