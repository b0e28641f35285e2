"""What a GPU gives: all methods on it and on the CPU, and three works beside loops and pfl-research.

The works are those of ``round.py`` (heavy) and of ``light_clients.py`` (light), and ResNet-8 at a hundred clients.
Images are random: speed does not depend on them, and a machine without a network needs no data. Each work is done by
fedpfl with clients as one batch and one after the other, by a straight PyTorch loop, by that loop with CUDA graphs, by
stacked clients written by hand with ``torch.func`` and a CUDA graph, and by pfl-research where it can be imported. On
a GPU all compute products in TF32 unless it is said.

``--needs`` lists what the machine must have. Packages that it lacks can be carried as wheels and installed with
``pip install --no-index --no-deps --target FOLDER *.whl``, with FOLDER in PYTHONPATH. Parts that do not fit into
``--budget`` are left out, and the record says so. It is written after each part.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import count, main, note, reason, table
from torch import Tensor, nn

from fedpfl.core import custom
from fedpfl.core.rng import generator
from fedpfl.engine.federation import run_federation
from fedpfl.engine.listener import Listener
from fedpfl.engine.local import LocalTransport
from fedpfl.methods import methods
from fedpfl.methods.adapted import AdapterMethod
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

NEEDS = {
    "torch": "PyTorch 2.1 or newer, with CUDA for --device cuda", "numpy": "NumPy", "safetensors": "safetensors",
    "pfl": "pfl-research (optional), with dp-accounting, multiprocess, dill, prv-accountant, dm-tree and immutabledict",
}  # fmt: skip
PARTS = ("works", "methods", "growth", "prices")
PEER_SECONDS = 60.0
# Rounds before those that count.
WARM_UP = 1


@dataclass(frozen=True)
class Work:
    """A work: FedAvg of one model by clients of equal size."""

    name: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    chosen: int
    samples: int
    tests: int
    epochs: int
    batch: int
    rounds: int

    @property
    def steps(self) -> int:
        """SGD steps of a client in a round."""
        return self.epochs * -(-self.samples // self.batch)


HEAVY = Work("heavy: fedavg-cnn", "fedavg-cnn", (1, 28, 28), 20, 4, 2850, 50, 5, 20, 2)
LIGHT = Work("light: mlp", "mlp", (1, 28, 28), 1000, 1000, 57, 13, 1, 20, 2)
RESNET = Work("resnet8", "resnet8", (3, 32, 32), 100, 20, 500, 20, 5, 50, 2)


def works(small: bool) -> list[Work]:
    """Return the works, or tiny forms of them."""
    if not small:
        return [HEAVY, LIGHT, RESNET]
    return [
        replace(HEAVY, clients=4, chosen=2, samples=40, tests=4, epochs=1, rounds=1),
        replace(LIGHT, clients=8, chosen=8, rounds=1),
        replace(RESNET, clients=4, chosen=2, samples=10, tests=4, epochs=1, batch=5, rounds=1),
    ]


# -- the record ------------------------------------------------------------------------------------------------------


class Record:
    """What was measured, written after each part, and the seconds that are left."""

    def __init__(self, path: Path | None, options: argparse.Namespace) -> None:
        self._path, self._begun, self._budget = path, time.monotonic(), options.budget
        cuda = options.device == "cuda"
        self.found: dict[str, Any] = {
            "command": shlex.join(["benchmarks/gpu.py", *sys.argv[1:]]), "python": platform.python_version(),
            "torch": torch.__version__, "cpu": _cpu(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d"),
            "card": torch.cuda.get_device_name() if cuda else None, "driver": _driver() if cuda else None,
            "errors": {},
        }  # fmt: skip

    def part(self, name: str, make: Callable[[], Any], seconds: float = 0.0) -> Any:
        """Measure a part and write the record; what fails or does not fit into the time is written down as that."""
        left = self._budget - (time.monotonic() - self._begun)
        if left < seconds:
            self.found["errors"][name] = f"left out: {left:.0f} s were left of {self._budget:.0f}"
            result = None
        else:
            note(name)
            try:
                result = make()
            except Exception as error:  # noqa: BLE001  one part's: the others are worth having
                self.found["errors"][name] = f"{type(error).__name__}: {error}"[:1000]
                note(f"{name} failed: {error}")
                result = None
            else:
                self.found[name] = result
        self.found["seconds"] = round(time.monotonic() - self._begun, 1)
        if self._path:
            self._path.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        return result


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _driver() -> str:
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    return ""


# -- fedpfl ----------------------------------------------------------------------------------------------------------


class Marks(Listener):
    """Takes the time after each round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round_ended(self, rule: Any, done: Any, state: Any) -> bool:
        """Take it."""
        self.times.append(time.perf_counter())
        return False


def fedpfl_rounds(
    values: dict[str, Any], data: Sequence[Any], workers: int = 0, look: Callable[[], Any] | None = None
) -> dict[str, Any]:
    """Run a federation in this process; return the seconds of its rounds, its lines and its shared arrays."""
    marks = Marks()
    with tempfile.TemporaryDirectory(prefix="fedpfl-gpu-") as name, custom.as_setting("dataset", list(data)) as dataset:
        places = {"output-dir": f"{name}/runs", "state-dir": f"{name}/state", "run-name": "run", "dataset": dataset}
        config = Config.parse({"num-clients": len(data), "min-samples": 2, "last-batch": "keep", **values, **places})
        if values.get("device") == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        with LocalTransport(config, workers) as transport:
            folder = run_federation(transport, config, [marks])
            alone = sorted({reason for *_, reason in transport._together.alone}) if transport._together else []
        lines, arrays = folder.metrics(), folder.checkpoint()[1]
    seconds = np.diff([begun, *marks.times]).tolist()
    peak = torch.cuda.max_memory_allocated() / 2**30 if values.get("device") == "cuda" else None
    return {"seconds": seconds, "lines": lines, "arrays": arrays, "alone": alone, "peak GiB": peak}


def settings_of(work: Work, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Return fedpfl's settings for a work."""
    return {
        "method": "fedavg", "model": work.model, "fraction-train": work.chosen / work.clients, "seed": options.seed,
        "num-server-rounds": work.rounds + WARM_UP, "evaluate-every": 0, "local-epochs": work.epochs,
        "batch-size": work.batch, "optimizer": "sgd", "learning-rate": 0.01, "momentum": 0.0, "weight-decay": 0.0,
        "device": options.device, "precision": "tf32" if options.device == "cuda" else "float32", **more,
    }  # fmt: skip


def federation(work: Work, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Return random clients: images in −1 … 1, labels, and as much for tests."""
    rng = np.random.default_rng(seed)

    def part(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-1, 1, (size, *work.shape)).astype(np.float32)
        return x, rng.integers(0, 10, size)

    return [(*part(work.samples), *part(work.tests)) for _ in range(work.clients)]


# -- the loops -------------------------------------------------------------------------------------------------------


class Loop:
    """A straight PyTorch loop over clients, on data that lie where it computes."""

    def __init__(self, work: Work, data: Sequence[tuple[np.ndarray, ...]], options: argparse.Namespace) -> None:
        self.work, self.seed, self.device = work, options.seed, torch.device(options.device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        config = Config.parse({**settings_of(work, options), "device": "cpu", "precision": "float32"})
        model, _ = assemble(config, work.shape, 10)
        self.model = model.to(self.device).train()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.params = list(self.model.parameters())
        chosen = data[: work.chosen]
        self.x = torch.from_numpy(np.stack([x for x, *_ in chosen])).to(self.device)
        self.y = torch.from_numpy(np.stack([y for _, y, *_ in chosen])).to(self.device)
        if self.x.dim() == 5:  # channels_last, as cuDNN prefers
            self.x = self.x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        self.start = [p.detach().clone() for p in self.params]

    def orders(self, number: int) -> list[Tensor]:
        """Return each client's order of samples in a round, epoch by epoch."""
        work = self.work
        found = []
        for client in range(work.chosen):
            rng = generator(self.seed, "benchmark", client, number)
            found.append(np.concatenate([rng.permutation(work.samples) for _ in range(work.epochs)]))
        return list(torch.from_numpy(np.stack(found)).to(self.device))

    def sizes(self) -> list[int]:
        """Return the sizes of a client's batches in a round."""
        whole, rest = divmod(self.work.samples, self.work.batch)
        return ([self.work.batch] * whole + [rest] * bool(rest)) * self.work.epochs

    def step(self, x: Tensor, y: Tensor) -> None:
        """Do one step of SGD."""
        grads = torch.autograd.grad(nn.functional.cross_entropy(self.model(x), y), self.params)
        with torch.no_grad():
            torch._foreach_add_(self.params, list(grads), alpha=-0.01)

    def steps(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Do all steps of a client."""
        for rows in torch.split(order, self.sizes()):
            self.step(x.index_select(0, rows), y.index_select(0, rows))

    @torch.no_grad()
    def load(self) -> None:
        """Put the round's weights into the model."""
        for param, start in zip(self.params, self.start, strict=True):
            param.copy_(start)

    def round(self, number: int) -> None:
        """Train all clients of a round and take their mean."""
        total = [torch.zeros_like(start) for start in self.start]
        for client, order in enumerate(self.orders(number)):
            self.load()
            self.steps(self.x[client], self.y[client], order)
            with torch.no_grad():
                torch._foreach_add_(total, self.params, alpha=1 / self.work.chosen)
        self.start = total

    def seconds(self) -> list[float]:
        """Return the seconds of the rounds that count."""
        found = []
        for number in range(self.work.rounds + WARM_UP):
            begun = time.perf_counter()
            self.round(number)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - begun)
        return found[WARM_UP:]


class Graphs:
    """Steps as CUDA graphs, one for each size of a batch; on a CPU they run as they are."""

    def __init__(self, step: Callable[..., None]) -> None:
        self._step, self._made = step, dict[Any, Any]()

    def __call__(self, *inputs: Tensor) -> None:
        """Make a step."""
        key = tuple(inputs[-1].shape)
        if not inputs[0].is_cuda:
            self._step(*inputs)
        elif key not in self._made:
            self._step(*inputs)  # what libraries set up is no part of a graph
            held, graph = [one.clone() for one in inputs], torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(*held)
            self._made[key] = held, graph
        else:
            held, graph = self._made[key]
            for mine, given in zip(held, inputs, strict=True):
                mine.copy_(given)
            graph.replay()


class GraphLoop(Loop):
    """The straight loop with CUDA graphs."""

    def __init__(self, work: Work, data: Sequence[tuple[np.ndarray, ...]], options: argparse.Namespace) -> None:
        super().__init__(work, data, options)
        self._graphs = Graphs(super().step)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Do one step of SGD."""
        self._graphs(x, y)


class StackedLoop(Loop):
    """All clients of a round at once: ``torch.func.vmap`` over stacked weights, as a CUDA graph."""

    def __init__(self, work: Work, data: Sequence[tuple[np.ndarray, ...]], options: argparse.Namespace) -> None:
        super().__init__(work, data, options)
        self.stacked = [torch.stack([start] * work.chosen) for start in self.start]
        buffers = {name: torch.stack([b] * work.chosen) for name, b in self.model.named_buffers() if b.dim()}

        for module in list(self.model.modules()):
            if isinstance(module, nn.BatchNorm2d):
                module.forward = partial(_normalised, module)  # vmap has no batch_norm on a GPU

        def loss(params: dict[str, Tensor], own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.model, {**params, **own}, (x,))
            return nn.functional.cross_entropy(outputs, y)

        def step(x: Tensor, y: Tensor) -> None:
            params = [array.detach().requires_grad_() for array in self.stacked]
            losses = torch.vmap(loss)(dict(zip(self.names, params, strict=True)), buffers, x, y)
            grads = torch.autograd.grad(losses.sum(), params)
            with torch.no_grad():
                torch._foreach_add_(self.stacked, list(grads), alpha=-0.01)

        self._graphs = Graphs(step)

    @torch.no_grad()
    def _load(self) -> None:
        for stacked, start in zip(self.stacked, self.start, strict=True):
            stacked.copy_(start.expand_as(stacked))

    def round(self, number: int) -> None:
        """Train all clients of a round and take their mean."""
        self._load()
        orders, clients = torch.stack(self.orders(number)), torch.arange(self.work.chosen, device=self.device)[:, None]
        for rows in torch.split(orders, self.sizes(), dim=1):
            self._graphs(self.x[clients, rows], self.y[clients, rows])
        self.start = [stacked.mean(0) for stacked in self.stacked]


def _normalised(module: nn.BatchNorm2d, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    scale = torch.rsqrt(variance + module.eps) * module.weight
    return x * scale[:, None, None] + (module.bias - mean * scale)[:, None, None]


def pfl_seconds(work: Work, data: Sequence[tuple[np.ndarray, ...]], options: argparse.Namespace) -> list[float]:
    """Return the seconds of pfl-research's rounds, by the script that ``peers.py`` has for it."""
    if importlib.util.find_spec("pfl") is None:
        raise RuntimeError("pfl-research is not installed")
    with tempfile.TemporaryDirectory(prefix="fedpfl-gpu-") as name:
        arrays: dict[str, np.ndarray] = {}
        for at, part in ((0, "train"), (2, "test")):
            x = np.concatenate([client[at] for client in data])
            arrays[f"x_{part}"] = ((x.transpose(0, 2, 3, 1) + 1) * 127.5).astype(np.uint8)
            arrays[f"y_{part}"] = np.concatenate([client[at + 1] for client in data])
            arrays[f"sizes_{part}"] = np.array([len(client[at + 1]) for client in data])
        np.savez(Path(name) / "work.npz", **arrays)
        told = {
            "model": work.model, "chosen": work.chosen, "epochs": work.epochs, "rounds": work.rounds + WARM_UP,
            "seed": options.seed, "batch-size": work.batch, "learning-rate": 0.01,
        }  # fmt: skip
        (Path(name) / "work.json").write_text(json.dumps(told), encoding="utf-8")
        env = {**os.environ, "PFL_PYTORCH_DEVICE": options.device, "WANDB_MODE": "disabled"}
        words = [sys.executable, str(Path(__file__).parent / "peers" / "pfl_run.py"), name]
        try:
            done = subprocess.run(words, env=env, capture_output=True, timeout=PEER_SECONDS, check=False)
            said, failed = done.stdout, done.stderr if done.returncode else b""
        except subprocess.TimeoutExpired as error:  # the rounds until then count
            said, failed = error.stdout or b"", b"no second round within the time"
    lines = [line.removeprefix("round ") for line in said.decode().splitlines() if line.startswith("round ")]
    if len(lines) <= WARM_UP:
        raise RuntimeError(reason(failed.decode()) or "it told of no round")
    return [json.loads(line)["train"] for line in lines][WARM_UP:]


# -- the parts -------------------------------------------------------------------------------------------------------


def measure_work(work: Work, options: argparse.Namespace, record: Record) -> None:
    """Measure a work by everything that does it."""
    data = federation(work, options.seed)
    steps, trained = work.steps * work.chosen, work.epochs * work.samples * work.chosen

    def told(seconds: Sequence[float], **more: Any) -> dict[str, Any]:
        middle = statistics.median(seconds)
        return {
            "seconds": [round(one, 4) for one in seconds], "median": round(middle, 4),
            "clients/s": work.chosen / middle, "samples/s": trained / middle, "steps/s": steps / middle, **more,
        }  # fmt: skip

    def ours(**more: Any) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            found = fedpfl_rounds(settings_of(work, options, **more), data)
            return told(found["seconds"][WARM_UP:], **{"peak GiB": found["peak GiB"], "alone": found["alone"]})

        return run

    name, at_once = work.name, {} if options.device == "cuda" else {"clients-at-once": work.chosen}
    if options.device == "cuda":
        record.part(f"{name} | fedpfl, one batch, float32", ours(precision="float32"), 20)
        record.part(f"{name} | fedpfl, one batch, bf16", ours(precision="bf16"), 20)
    record.part(f"{name} | fedpfl, one batch", ours(**at_once), 20)
    record.part(f"{name} | fedpfl, one batch, tested after each round", ours(**at_once, **{"evaluate-every": 1}), 20)
    loops = {
        "stacked by hand, CUDA graphs": StackedLoop,
        "straight loop, CUDA graphs": GraphLoop,
        "straight loop": Loop,
    }
    for title, loop in loops.items():
        record.part(f"{name} | {title}", lambda loop=loop: told(loop(work, data, options).seconds()), 20)
    record.part(f"{name} | pfl-research", lambda: told(pfl_seconds(work, data, options)), 45)
    record.part(f"{name} | fedpfl, one after the other", ours(**{"clients-at-once": 1}), 40)
    if options.device == "cuda":
        record.part(f"{name} | idle", lambda: idle(work, data, options), 20)


def idle(work: Work, data: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the share of a round's time in which the card does nothing, and what takes the most time."""
    from torch.profiler import ProfilerActivity, profile

    class Watch(Listener):
        def round_ended(self, rule: Any, done: Any, state: Any) -> bool:
            torch.cuda.synchronize()
            if done.number == WARM_UP:
                self.profiler = profile(activities=[ProfilerActivity.CUDA])
                self.profiler.__enter__()
                self.begun = time.perf_counter()
            elif done.number == WARM_UP + 1:
                self.seconds = time.perf_counter() - self.begun
                self.profiler.__exit__(None, None, None)
            return False

    watch = Watch()
    values = {**settings_of(work, options), "num-server-rounds": WARM_UP + 1}
    with tempfile.TemporaryDirectory(prefix="fedpfl-gpu-") as name, custom.as_setting("dataset", list(data)) as dataset:
        places = {"output-dir": f"{name}/runs", "state-dir": f"{name}/state", "run-name": "run", "dataset": dataset}
        config = Config.parse({"num-clients": len(data), "min-samples": 2, "last-batch": "keep", **values, **places})
        with LocalTransport(config, 0) as transport:
            run_federation(transport, config, [watch])
    averages = watch.profiler.key_averages()
    kernels = sorted(averages, key=lambda one: -one.self_device_time_total)[:12]
    busy = sum(one.self_device_time_total for one in averages) / 1e6
    return {
        "seconds": watch.seconds, "busy": busy, "idle share": 1 - busy / watch.seconds,
        "device": [[one.key[:100], one.count, one.self_device_time_total / 1e6] for one in kernels],
    }  # fmt: skip


def growth(options: argparse.Namespace, small: bool) -> list[dict[str, Any]]:
    """Measure how light clients and ResNet-8 grow with the number of clients at once."""
    found = []
    sizes = (2, 4) if small else (10, 30, 100, 300, 1000)
    deep = replace(RESNET, samples=100, epochs=1, tests=4)
    for base, counts in ((LIGHT, sizes), (deep, () if small else sizes[:3])):
        for number in counts:
            work = replace(base, clients=number, chosen=number, rounds=1 if small else 2)
            values = settings_of(work, options, **{"clients-at-once": number})
            run = fedpfl_rounds(values, federation(work, options.seed))
            middle = statistics.median(run["seconds"][WARM_UP:])
            found.append({
                "work": base.name, "clients": number, "seconds": middle, "clients/s": number / middle,
                "peak GiB": run["peak GiB"],
            })  # fmt: skip
    return found


def prices(options: argparse.Namespace, small: bool) -> dict[str, Any]:
    """Measure a round of PFLlib's Fashion-MNIST division and of FedDecomp's table 1, on random images of that shape."""
    rng = np.random.default_rng(options.seed)

    def divided(clients: int, total: int, shape: tuple[int, int, int], alpha: float) -> list[tuple[np.ndarray, ...]]:
        shares = rng.dirichlet([alpha] * clients, 10).sum(0) / 10
        found = []
        for size in np.maximum(8, shares * total).astype(int).tolist():
            x, y = rng.uniform(-1, 1, (size, *shape)).astype(np.float32), rng.integers(0, 10, size)
            tests = max(2, size // 4)
            found.append((x[tests:], y[tests:], x[:tests], y[:tests]))
        return found

    total = 400 if small else 70_000
    jobs: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "PFLlib, Fashion-MNIST, Dir(0.1)": (
            divided(4 if small else 20, total, (1, 28, 28), 0.1),
            {"model": "fedavg-cnn", "batch-size": 10, "local-epochs": 1, "learning-rate": 0.005},
        ),
        "FedDecomp, table 1, CIFAR-10": (
            divided(4 if small else 40, total if small else 60_000, (3, 32, 32), 0.1),
            {"model": "resnet8", "batch-size": 100, "local-epochs": 5, "learning-rate": 0.1, "momentum": 0.9},
        ),
    }
    found: dict[str, Any] = {}
    for name, (data, values) in jobs.items():
        for method in ("fedavg", "feddecomp"):
            more = {} if options.device == "cuda" else {"clients-at-once": len(data)}
            run = fedpfl_rounds(
                {"method": method, "num-server-rounds": 2 if small else 3, "device": options.device,
                 "seed": options.seed, "evaluate-every": 1, **more, **values}, data
            )  # fmt: skip
            found[f"{name}: {method}"] = {
                "clients": len(data),
                "seconds": run["seconds"][1:],
                "peak GiB": run["peak GiB"],
                "alone": run["alone"],
            }
    return found


def compare_methods(options: argparse.Namespace, small: bool) -> dict[str, Any]:
    """Run every method two rounds on the CPU and on the device; return accuracies, distances, seconds."""
    rng = np.random.default_rng(options.seed)
    centres = rng.normal(size=(10, 1, 16, 16)).astype(np.float32)

    def part(size: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 10, size)
        return centres[y] + rng.normal(size=(size, 1, 16, 16)).astype(np.float32), y

    data = [(*part(40 + 10 * client), *part(40)) for client in range(4)]
    found: dict[str, Any] = {}
    names = sorted(methods())
    for name in names[:: 12 if small else 1]:
        values: dict[str, Any] = {
            "method": name, "model": "small-cnn", "num-server-rounds": 2, "evaluate-every": 1, "seed": options.seed,
            "local-epochs": 4, "batch-size": 10, "learning-rate": 0.1,
        }  # fmt: skip
        if issubclass(methods().get(name), AdapterMethod):
            values["trainable"] = "lora"
        try:
            runs = {
                "cpu": fedpfl_rounds({**values, "device": "cpu"}, data),
                "batch": fedpfl_rounds({**values, "device": options.device, "clients-at-once": 4}, data),
                "alone": fedpfl_rounds({**values, "device": options.device, "clients-at-once": 1}, data),
            }
            row: dict[str, Any] = {}
            for way, run in runs.items():
                last = run["lines"][-1]
                row[way] = {"accuracy": last["personalised"]["weighted"], "seconds": run["seconds"]}
                row[way]["distance"] = _distance(runs["cpu"]["arrays"], run["arrays"])
            row["one after the other"] = runs["batch"]["alone"]
            found[name] = row
        except Exception as error:  # noqa: BLE001  one method's: the others are worth having
            found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    return found


def _distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Return ‖a − b‖ / ‖a‖ of the server's arrays."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    apart = sum(float(np.square(a[name].astype(np.float64) - b[name]).sum()) for name in a)
    whole = sum(float(np.square(a[name].astype(np.float64)).sum()) for name in a)
    return (apart / whole) ** 0.5 if whole else 0.0


# -- what is printed -------------------------------------------------------------------------------------------------


def show(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print tables."""
    rows = []
    for work in works(options.small):
        mine = found.get(f"{work.name} | fedpfl, one batch")
        for key, value in found.items():
            if key.startswith(f"{work.name} | ") and "median" in value:
                ratio = f"{value['median'] / mine['median']:.2f}" if mine else ""
                rows.append(
                    [key, f"{value['median']:.3f}", f"{value['clients/s']:,.1f}", f"{value['steps/s']:,.0f}", ratio]
                )
    if rows:
        print(table(["work", "s a round", "clients/s", "steps/s", "times fedpfl's"], rows), end="\n\n")
    for key, value in found.items():
        if key.endswith("| idle"):
            print(f"{key}: {value['idle share']:.0%} of {value['seconds']:.3f} s")
    if found.get("growth"):
        body = [
            [row["work"], str(row["clients"]), f"{row['seconds']:.3f}", f"{row['clients/s']:,.0f}"]
            for row in found["growth"]
        ]
        print(table(["work", "clients at once", "s a round", "clients/s"], body), end="\n\n")
    if found.get("prices"):
        body = [[name, f"{statistics.median(row['seconds']):.2f}"] for name, row in found["prices"].items()]
        print(table(["round", "s"], body), end="\n\n")
    if found.get("methods"):
        body = []
        for name, row in found["methods"].items():
            if "error" in row:
                body.append([name, row["error"][:60], "", "", "", ""])
                continue
            body.append([
                name, *(f"{row[way]['accuracy']:.3f}" for way in ("cpu", "batch", "alone")),
                f"{row['batch']['distance']:.1e}", f"{row['alone']['distance']:.1e}",
            ])  # fmt: skip
        head = ["method", "accuracy CPU", "one batch", "one by one", "distance, one batch", "one by one"]
        print(table(head, body), end="\n\n")
    for name, error in found["errors"].items():
        print(f"{name}: {error}")
    print(f"{found['card'] or found['cpu']}, torch {found['torch']}, {found['seconds']} s: {found['command']}")


def measure(options: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    if options.needs:
        print("\n".join(f"{name}: {what}" for name, what in NEEDS.items()))
        return
    torch.manual_seed(options.seed)
    record = Record(options.record, options)
    if "works" in options.parts:
        for work in works(options.small):
            measure_work(work, options, record)
    if "methods" in options.parts:
        record.part("methods", lambda: compare_methods(options, options.small), 60)
    if "growth" in options.parts:
        record.part("growth", lambda: growth(options, options.small), 30)
    if "prices" in options.parts:
        record.part("prices", lambda: prices(options, options.small), 60)
    show(record.found, options)


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="gpu.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to compute (%(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny works, to try the script")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (all)")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all of it (%(default)s)")
    parser.add_argument("--record", type=Path, help="the JSON file to write")
    parser.add_argument("--seed", type=count, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--needs", action="store_true", help="list what the machine must have")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
