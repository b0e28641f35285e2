"""Runs a schedule: phases, losses, penalties and optimisers. Knows neither Flower nor any method."""
