"""The results of a run: its folder, exported models, held-out clients, tables."""
