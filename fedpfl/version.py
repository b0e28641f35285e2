"""The version, where the repository is, and the versions of Flower, which every part of the package can import."""

__version__ = "0.1.0"
# https://github.com/OWNER/NAME; after a change: fedpfl config --update. While it is empty, nothing links to it.
REPOSITORY = ""

# The versions of Flower that the library and the strategies take, as in fedpfl's own pyproject.toml; `flwr run .` needs
# the extra simulation. Testbeds use what Flower documents for nobody: these versions, the second one excluded.
FLOWER, SIMULATION = "flwr>=1.22", "flwr[simulation]>=1.22"
FLOWER_OF_TESTBEDS = ((1, 41), (1, 43))
