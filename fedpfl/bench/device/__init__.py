"""What only a device runs: its warm worker, the programs around its model, and the measure of its speed."""
