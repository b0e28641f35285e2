"""fedpfl: personalised federated learning as one Flower app."""

__version__ = "0.1.0"
