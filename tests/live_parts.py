"""Runs for the live page that nobody has trained, and the page itself, served in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import InThread

from fedpfl.core.checksummed_files import json_line, to_toml, write_toml
from fedpfl.results.round_line import summarise
from fedpfl.results.round_record import Round
from fedpfl.setup.config import Config
from fedpfl.study.live.page_server import LivePage, listen, serve


def make_run(
    root: Path, name: str, clients: int = 3, rounds: int = 0, about: dict[str, Any] | None = None, **settings: Any
) -> Path:
    """Make the folder of a run whose clients are found, with some rounds; ``about`` is more of its task."""
    folder = root / name
    folder.mkdir(parents=True)
    options = {key.replace("_", "-"): value for key, value in settings.items()}
    values = {
        "method": "fedavg",
        "dataset": "digits",
        "model": "small-cnn",
        "seed": 1,
        "num-server-rounds": 5,
        **options,
    }
    write_toml(folder / "config.toml", to_toml({**Config.parse({"method": values["method"]}).flat(), **values}))
    task = {
        "clients": clients,
        "input_shape": [1, 8, 8],
        "num_classes": 2,
        "samples": [[10 * (i + 1), 4] for i in range(clients)],
        "remarks": ["nothing is personal"],
        "class_counts": [[10 * (i + 1) - i, i] for i in range(clients)],
        **(about or {}),
    }
    (folder / "task.json").write_text(json_line({"state_key": f"{name}-1", **task}))
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(round_line(number, clients) for number in range(1, rounds + 1))
    return folder


def round_line(number: int, clients: int = 3, failed: dict[int, str] | None = None, loss: float = 0.5) -> str:
    """Return the line of a round in which all clients but the failed ones trained and were tested."""
    left = [i for i in range(clients) if i not in (failed or {})]
    tested = {"personalised-samples": 1000, "personalised-loss-sum": 1.0, "global-samples": 1000, "global-correct": 500,
              "global-loss-sum": 2.0}  # fmt: skip
    done = Round(
        number,
        {i: {"train-loss": loss, "train-samples": 10} for i in left},
        {i: {**tested, "personalised-correct": (number * 7 + i * 31) % 1001} for i in left},
        failed or {}, seconds_train=0.5, seconds_evaluate=0.25, bytes_down=2_000_000, bytes_up=1_000_000,
    )  # fmt: skip
    return json_line(summarise(done))


def add_round(folder: Path, number: int, **how: Any) -> None:
    """Let a run record a round."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(round_line(number, **how))


@contextmanager
def served(runs: Path, **more: Any) -> Iterator[LivePage]:
    """Serve a page of a folder of runs on any free port."""
    page, stopping = LivePage(runs, listen(port=0), **more), threading.Event()
    serving = InThread(serve, page, stopping)
    try:
        yield page
    finally:
        stopping.set()
        serving.result()
