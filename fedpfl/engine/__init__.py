"""A run: find the clients, agree on the task, run the rounds, record them; and the local transport with its workers."""
