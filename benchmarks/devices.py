"""What a round over real SuperNodes costs outside training, with and without worker and fork server.

The clients' work is next to nothing, so that a round's time is Flower's, the transport's and ours: messages, polling,
processes that start. The same rounds simulated show what the work itself takes. A round is training and evaluation of
all clients: two messages to each. A round that only trains, as with ``evaluate-trained``, takes the first number.
"""

from __future__ import annotations

import argparse
import statistics

from common import count, footer, main, note, simulate, table

GOAL_SECONDS = 3


def measure(options: argparse.Namespace) -> None:
    """Run every kind of testbed once."""
    settings = {
        "dataset": "digits", "method": "fedavg", "model": "small-cnn", "partitioner": "iid", "local-epochs": 1,
        "batch-size": 50, "threads": 1, "num-clients": options.clients, "num-server-rounds": options.rounds + 1,
        "seed": options.seed,
    }  # fmt: skip
    up = ("up", "--devices", str(options.devices))
    kinds = {
        "simulation": ("run",),
        "HTTP, without worker and fork server": (*up, "--no-worker"),
        "HTTP, with both": up,
        "MQTT, without worker and fork server": (*up, "--transport", "mqtt", "--no-worker"),
        "MQTT, with both": (*up, "--transport", "mqtt"),
    }
    rows = []
    for name, command in kinds.items():
        note(name)
        lines = simulate(settings, command=command).lines[1:]
        training, seconds = ([line[key] for line in lines] for key in ("seconds_train", "seconds"))
        spread = f"{min(seconds):.2f} … {max(seconds):.2f}"
        goal = "" if command[0] == "run" else f"≤ {GOAL_SECONDS}"
        rows.append([name, f"{statistics.median(training):.2f}", f"{statistics.median(seconds):.2f}", spread, goal])
    print(table(["how", "s to train (median)", "s / round (median)", "least … most", "goal"], rows))
    print(
        f"\nWork: {options.clients} clients on {options.devices} devices, FedAvg of a small CNN on digits, one epoch; "
        f"{options.rounds} rounds each, after one that does not count."
    )
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="devices.py", description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=count, default=4, help="SuperNodes (%(default)s)")
    parser.add_argument("--devices", type=count, default=4, help="devices, each with one worker (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="rounds that count (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(measure, parser)
