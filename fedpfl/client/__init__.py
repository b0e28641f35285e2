"""A client: its part of a round, its personal arrays on disk, and the warm worker of a device."""
