"""What every other package builds on: errors, files, settings, random numbers, how arrays travel; without Flower."""
