"""What Flower loads on the server; the code is in the package, so that no other folder's file can take its place."""

from fedpfl.flower.server_app import app

__all__ = ["app"]
