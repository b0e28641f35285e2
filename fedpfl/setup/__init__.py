"""What server and clients must agree on before round 1: a run's settings, and the model made from them."""
