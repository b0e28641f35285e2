"""Differential privacy.

Each client's update is clipped, and the server adds noise to the sum. ε bounds how much a single client's updates can
show; smaller is better. `dp_reproducible` makes the example repeatable, and protects nobody.
"""

import fedpfl

runs = [
    fedpfl.run(
        method="fedavg", model="mlp", dataset="digits", num_clients=20, num_server_rounds=8, dp_where="server",
        dp_noise_multiplier=noise, dp_clip_norm=0.5, dp_reproducible=noise > 0, workers=0, quiet=True,
    )
    for noise in (0.0, 1.0, 2.0)
]  # fmt: skip
for run in runs:
    epsilon = run.rounds["privacy_epsilon"].iloc[-1] if "privacy_epsilon" in run.rounds else float("inf")
    noise, accuracy = run.settings["dp-noise-multiplier"], run.summary["personalised_accuracy"]
    print(f"noise {noise}  ε {epsilon:5.1f}  accuracy {accuracy:.3f}")
fedpfl.compare(runs).plot().save("privacy.svg")
