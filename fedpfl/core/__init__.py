"""What every other room stands on: errors, files, settings, random numbers, and how arrays travel; without Flower."""
