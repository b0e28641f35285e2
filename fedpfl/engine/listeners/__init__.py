"""Listeners of the package: one file each."""
