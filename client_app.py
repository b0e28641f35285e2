"""What Flower loads on a client; the code is in the package, so that no other folder's file can take its place."""

from fedpfl.flower.client_app import app

__all__ = ["app"]
