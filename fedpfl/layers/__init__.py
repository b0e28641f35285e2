"""What several methods add to a model: memories, twins, and layers in place of plain ones."""
