"""What every other package builds on: errors, files, settings, random numbers, and how arrays travel; without Flower."""
