"""Starting a federation in this process and its workers, and what `fedpfl new` writes."""
