"""Additions of several methods to a model: memories, twins, and layers in place of plain ones."""
