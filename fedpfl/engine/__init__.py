"""A run: find the clients, agree on the task, run the rounds, record them; and the engine that plays clients here."""
