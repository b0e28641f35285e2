"""Foundations of every other package: errors, files, settings, random numbers, layouts of arrays; without Flower."""
