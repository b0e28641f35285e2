"""A bench of boards, on one machine.

A file describes six clients on two slow boards and four on laptops. The run computes the same as without it, and
records when each round would have ended there: here with one and with five epochs a round.
"""

from pathlib import Path

import fedpfl

Path("bench.toml").write_text("""
[boards]
clients = "0-5"
clients-per-device = 3
samples-per-second = 300
up-mbit = 20
down-mbit = 20

[laptops]
clients = "6-9"
samples-per-second = 2000
""")
runs = [
    fedpfl.run(
        method="fedper", model="mlp", dataset="digits", num_server_rounds=8, local_epochs=epochs,
        devices_model="bench.toml", workers=0, quiet=True,
    )
    for epochs in (1, 5)
]  # fmt: skip
for run in runs:
    seconds, accuracy = run.rounds["seconds_virtual"].sum(), run.summary["personalised_accuracy"]
    print(f"{run.settings['local-epochs']} epochs: {seconds:.0f} s on the bench, accuracy {accuracy:.3f}")
fedpfl.compare(runs).plot().save("virtual_bench.svg")
