"""Virtual time beside real time: `fedpfl run` with a file of devices, and `fedpfl up --network`, of the same run.

This machine's profile gives the devices' speed, and one run of next to no work what an exchange costs here; then three
settings are predicted and measured: by training, by the network, and by both with boards of several clients. All
devices are on this machine, so it must be quiet and have a core for each device. The profile is measured in as many
processes at a time as there are devices, since cores share memory and more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Run, count, footer, main, note, simulate, table

from fedpfl.bench.device.profile import Profile
from fedpfl.bench.device.profile import measure as measure_profile
from fedpfl.core.stored import to_toml
from fedpfl.setup.config import Config

SERVER_SECONDS = 0.17
# Of the samples of digits, of which a client has 80 % for training.
INPUT, CLASSES, SAMPLES, FOR_TRAINING = "1x8x8", 10, 1797, 0.8
DEVICES = 2


@dataclass(frozen=True)
class Setting:
    """What is run: how long clients are to train, and over which network."""

    name: str
    clients: int
    model: str
    seconds: float
    mbit: float
    milliseconds: int


SETTINGS = (
    Setting("training", 2, "small-cnn", 8.0, 1000, 0),
    Setting("network", 2, "small-vit", 0.5, 8, 50),
    Setting("both, two clients a device", 4, "small-vit", 3.0, 8, 20),
)


def common(options: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Return the settings that all runs have."""
    return {
        "dataset": "digits", "method": "fedavg", "partitioner": "iid", "batch-size": 20, "threads": 1,
        "test-fraction": 1 - FOR_TRAINING, "num-clients": clients, "num-server-rounds": options.rounds + 1,
        "evaluate-every": 1, "local-epochs": 1, "seed": options.seed,
    }  # fmt: skip


def measure_here(given: Mapping[str, Any]) -> Profile:
    """Return the profile of a process of this machine."""
    return measure_profile(Config.parse(given), INPUT, CLASSES)


def on_devices(given: Mapping[str, Any], network: Sequence[str] = ()) -> float:
    """Return the median seconds of a round on devices."""
    return median(simulate(given, command=("up", "--devices", str(DEVICES), *network)), "seconds")


def median(run: Run, key: str) -> float:
    """Return the median of a number over the rounds but the first."""
    return statistics.median(line[key] for line in run.lines[1:])


def measure(options: argparse.Namespace) -> None:
    """Predict and measure each setting."""
    note("what an exchange costs")
    # A round has two exchanges with each client, side by side.
    exchange = max(0.0, on_devices({**common(options, 2), "model": "mlp-200"}) / 2 - 2 * SERVER_SECONDS)
    rows = []
    for setting in SETTINGS:
        note(setting.name)
        given = {**common(options, setting.clients), "model": setting.model}
        # Some epochs, as what a round costs besides them is little where there are many.
        with ProcessPoolExecutor(DEVICES, multiprocessing.get_context("spawn")) as pool:
            both = [pool.submit(measure_here, {**given, "local-epochs": 10}) for _ in range(DEVICES)]
            profile = min((one.result() for one in both), key=lambda one: one.train)  # a round waits for the slower
        samples = SAMPLES * FOR_TRAINING / setting.clients
        given["local-epochs"] = max(1, round(setting.seconds * profile.train / samples))
        network = f"{setting.mbit:g}mbit {setting.milliseconds}ms"
        real = on_devices(given, ("--network", network))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "here.toml").write_text(profile.to_toml(), encoding="utf-8")
            common_keys = {
                "exchange-seconds": exchange, "server-seconds": SERVER_SECONDS, "round-trips": options.round_trips,
            }  # fmt: skip
            devices = {
                "clients": f"0-{setting.clients - 1}", "clients-per-device": setting.clients // DEVICES,
                "profile": "here.toml", "up-mbit": setting.mbit, "down-mbit": setting.mbit,
                "latency-ms": setting.milliseconds,
            }  # fmt: skip
            bench = Path(folder) / "bench.toml"
            bench.write_text(f"{to_toml(common_keys)}[devices]\n{to_toml(devices)}", encoding="utf-8")
            virtual = median(simulate({**given, "devices-model": str(bench)}), "seconds_virtual")
        rows.append([setting.name, network, f"{real:.2f}", f"{virtual:.2f}", f"{100 * (virtual / real - 1):+.0f} %"])
    print(table(["setting", "network", "s / round, up", "virtual s / round", "difference"], rows))
    print(
        f"\nAn exchange without work or network takes {exchange:.2f} s here, besides the server's {SERVER_SECONDS} s."
    )
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="virtual_clock.py", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=3, help="rounds that count (%(default)s)")
    parser.add_argument("--round-trips", type=count, default=5, help="of an exchange (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(measure, parser)
