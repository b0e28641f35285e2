"""Starting a federation: in this process and its workers, through Flower's simulation, or as a testbed of processes."""
