"""What a run leaves: its folder, exported models, held-out clients, tables."""
