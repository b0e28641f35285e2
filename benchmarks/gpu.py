"""What a GPU gives: all methods on it and on the CPU, and three works beside loops, pfl-research and fluke.

The works are the heavy and the light one of ``peers.py``, and 100 clients of ResNet-8.
Images are random: speed does not depend on them, and a machine without a network needs no data. Each work is done by
fedpfl with clients as one batch and one after the other, by a straight PyTorch loop, by that loop with CUDA graphs, by
stacked clients written by hand with ``torch.func`` and a CUDA graph, and by pfl-research and fluke where they can be
imported. On a GPU all compute products in TF32 unless it is said, and pfl-research also runs in several processes that
share the GPU, as its guide advises for small models. fedpfl and the peers run ``--runs`` times.

``--needs`` lists what the machine must have. Packages that it lacks can be carried as wheels and installed with
``pip install --no-index --no-deps --target FOLDER *.whl``, with FOLDER in PYTHONPATH. Each part
is printed, and the record, of which ``docs/tools/run_records.py`` makes tables, is written after each. It names the
parts that were left out because ``--budget`` was spent.
"""

from __future__ import annotations

import argparse
import gc
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
from common import GIB, BenchmarkError, count, cpu_model, main, note, reason
from peers import free_ports
from torch import Tensor, nn

from fedpfl.engine.listener import Listener
from fedpfl.engine.server_run import run_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.methods import methods
from fedpfl.methods.bases.adapters import AdapterMethod
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

NEEDS = {
    "torch": "PyTorch 2.1 or newer, with CUDA for --device cuda", "numpy": "NumPy", "safetensors": "safetensors",
    "pfl": "pfl-research (optional), with dp-accounting, multiprocess, dill, prv-accountant, dm-tree and immutabledict",
    "fluke": "fluke-fl (optional), with cerberus, diskcache, omegaconf and antlr4-python3-runtime",
}  # fmt: skip
# Those that can be imported by this name take part, each with a script beside this one.
PEERS = {"pfl-research": ("pfl", "pfl_run.py"), "fluke": ("fluke", "fluke_run.py")}
PEER_SECONDS = 60.0
# Processes of pfl-research that share a GPU.
SEVERAL = 4
# Seeds of a method on the CPU: how much its accuracy differs between them bounds what a GPU may change.
SEEDS = 3
# Rounds before those that count, and after them: the last one ends with tests.
WARM_UP, LAST = 1, 1


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


HEAVY = Work("heavy: fedavg-cnn", "fedavg-cnn", (1, 28, 28), 20, 4, 2850, 50, 5, 20, 3)
LIGHT = Work("light: mlp", "mlp", (1, 28, 28), 1000, 1000, 57, 13, 1, 20, 3)
RESNET = Work("resnet8", "resnet8", (3, 32, 32), 100, 20, 500, 20, 5, 50, 3)


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
        self._cuda = cuda = options.device == "cuda"
        card = torch.cuda.get_device_name() if cuda else ""
        self.values: dict[str, Any] = {"seed": options.seed, "date": time.strftime("%Y-%m-%d"), "seconds": 0.0,
                                       "parts": {}, "errors": {}, "took": {}}  # fmt: skip
        self.results: dict[str, Any] = {
            "command": shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]), "commit": options.commit,
            "processor": f"{card}; {os.cpu_count()} cores of {cpu_model()}".removeprefix("; "),
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__, "driver": _driver() if cuda else "",
            },
            "values": self.values,
        }  # fmt: skip

    def part(self, name: str, make: Callable[[], dict[str, Any]], seconds: float = 0.0) -> None:
        """Measure a part and write the record; what fails or does not fit into the time is written down as that."""
        left = self._budget - (time.monotonic() - self._begun)
        if left < seconds:
            self.values["errors"][name] = f"left out: {left:.0f} s were left of {self._budget:.0f}"
        else:
            note(name)
            if self._cuda:  # what the part before has left
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            begun = time.monotonic()
            try:
                self.values["parts"][name] = make()
            except Exception as error:  # noqa: BLE001  one part's: the others are worth having
                self.values["errors"][name] = f"{type(error).__name__}: {error}"[:1000]
                note(f"{name} failed: {error}")
            self.values["took"][name] = round(time.monotonic() - begun, 1)
        print(f"{name}: {json.dumps(self.values['parts'].get(name) or self.values['errors'][name])}", flush=True)
        self.values["seconds"] = round(time.monotonic() - self._begun, 1)
        if self._path:
            self._path.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
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


def fedpfl_rounds(values: dict[str, Any], data: Sequence[Any], marks: Marks | None = None) -> dict[str, Any]:
    """Run a federation in this process; return the seconds of its rounds, its lines and its shared arrays."""
    marks = marks or Marks()
    with tempfile.TemporaryDirectory(prefix="fedpfl-gpu-") as name, as_setting("dataset", list(data)) as dataset:
        places = {"output-dir": f"{name}/runs", "state-dir": f"{name}/state", "run-name": "run", "dataset": dataset}
        config = Config.parse({"num-clients": len(data), "min-samples": 2, "last-batch": "keep", **values, **places})
        begun = time.perf_counter()
        with SimulationTransport(config, 0) as transport:
            folder = run_federation(transport, config, [marks])
            alone = sorted({reason for *_, reason in transport.crew.together.alone}) if transport.crew else []
        lines, arrays = folder.metrics(), folder.checkpoint()[1]
    seconds = np.diff([begun, *marks.times]).tolist()
    return {"seconds": seconds, "lines": lines, "arrays": arrays, "alone": alone}


def peak() -> float | None:
    """Return the most memory that was in use on the card at once since the part began, in GiB."""
    return round(torch.cuda.max_memory_allocated() / GIB, 3) if torch.cuda.is_initialized() else None


def settings_of(work: Work, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Return fedpfl's settings for a work."""
    return {
        "method": "fedavg", "model": work.model, "fraction-train": work.chosen / work.clients, "seed": options.seed,
        "num-server-rounds": WARM_UP + work.rounds + LAST, "evaluate-every": 0, "local-epochs": work.epochs,
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

    def orders(self, number: int) -> Tensor:
        """Return each client's order of samples in a round, epoch by epoch: (clients, samples), drawn on the device."""
        work, rng = self.work, torch.Generator(self.device).manual_seed(1000 * self.seed + number)
        drawn = torch.rand(work.chosen, work.epochs, work.samples, generator=rng, device=self.device)
        return drawn.argsort(2).flatten(1)

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
        seconds = []
        for number in range(self.work.rounds + WARM_UP):
            begun = time.perf_counter()
            self.round(number)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        return seconds[WARM_UP:]


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
            for mine, received in zip(held, inputs, strict=True):
                mine.copy_(received)
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

        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.forward = partial(_normalised, module)  # vmap has no batch_norm on a GPU

        def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.model, {**params, **buffers}, (x,))
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
        orders, clients = self.orders(number), torch.arange(self.work.chosen, device=self.device)[:, None]
        for rows in torch.split(orders, self.sizes(), dim=1):
            self._graphs(self.x[clients, rows], self.y[clients, rows])
        self.start = [stacked.mean(0) for stacked in self.stacked]


def _normalised(module: nn.BatchNorm2d, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    scale = torch.rsqrt(variance + module.eps) * module.weight
    return x * scale[:, None, None] + (module.bias - mean * scale)[:, None, None]


def peer_seconds(
    peer: str, work: Work, data: Sequence[tuple[np.ndarray, ...]], options: argparse.Namespace, processes: int = 1
) -> list[float]:
    """Return the seconds of a peer's rounds, by the script that ``peers.py`` has for it."""
    module, script = PEERS[peer]
    if importlib.util.find_spec(module) is None:
        raise BenchmarkError(f"{peer} is not installed")
    with tempfile.TemporaryDirectory(prefix="fedpfl-gpu-") as name:
        arrays: dict[str, np.ndarray] = {}
        for place, part in ((0, "train"), (2, "test")):
            x = np.concatenate([client[place] for client in data])
            arrays[f"x_{part}"] = ((x.transpose(0, 2, 3, 1) + 1) * 127.5).astype(np.uint8)
            arrays[f"y_{part}"] = np.concatenate([client[place + 1] for client in data])
            arrays[f"sizes_{part}"] = np.array([len(client[place + 1]) for client in data])
        np.savez(Path(name) / "work.npz", **arrays)
        summary = {
            "model": work.model, "chosen": work.chosen, "epochs": work.epochs, "rounds": work.rounds + WARM_UP,
            "seed": options.seed, "batch-size": work.batch, "learning-rate": 0.01, "device": options.device,
        }  # fmt: skip
        (Path(name) / "work.json").write_text(json.dumps(summary), encoding="utf-8")
        env = {**os.environ, "PFL_PYTORCH_DEVICE": options.device, "WANDB_MODE": "disabled"}
        if processes > 1:
            addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(processes))
            env |= {"PFL_WORKER_ADDRESSES": addresses, "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, str(Path(__file__).parent / script), name]
        first, *others = (
            subprocess.Popen(
                command, env={**env, "PFL_WORKER_RANK": str(rank)} if processes > 1 else env,
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                stderr=subprocess.DEVNULL if rank else subprocess.PIPE,
            )
            for rank in range(processes)
        )  # fmt: skip
        try:
            said, error = first.communicate(timeout=PEER_SECONDS)
            failed = error.decode() if first.returncode else "it told of no round"
        except subprocess.TimeoutExpired:  # the rounds until then count
            first.kill()
            said, failed = first.communicate()[0], f"no second round within {PEER_SECONDS:.0f} s"
        finally:
            for process in (first, *others):
                process.kill()
                process.wait()
    lines = [line.removeprefix("round ") for line in said.decode().splitlines() if line.startswith("round ")]
    if len(lines) <= WARM_UP:
        raise BenchmarkError(reason(failed))
    return [json.loads(line)["train"] for line in lines][WARM_UP:]


# -- the parts -------------------------------------------------------------------------------------------------------


def measure_works(options: argparse.Namespace, record: Record) -> None:
    """Measure each work by everything that does it."""
    for work in works(options.small):
        measure_work(work, options, record)


def measure_work(work: Work, options: argparse.Namespace, record: Record) -> None:
    """Measure a work by everything that does it."""
    data = federation(work, options.seed)
    steps, trained = work.steps * work.chosen, work.epochs * work.samples * work.chosen

    def told(seconds: Sequence[float], **more: Any) -> dict[str, Any]:
        middle = statistics.median(seconds)
        return {
            "seconds": [round(one, 4) for one in seconds], "median": round(middle, 4),
            "clients/s": work.chosen / middle, "samples/s": trained / middle, "steps/s": steps / middle,
            "peak GiB": peak(), **more,
        }  # fmt: skip

    def ours(**more: Any) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            runs = [fedpfl_rounds(settings_of(work, options, **more), data) for _ in range(options.runs)]
            return told([second for run in runs for second in run["seconds"][WARM_UP:-LAST]], alone=runs[0]["alone"])

        return run

    name, at_once = work.name, {} if options.device == "cuda" else {"clients-at-once": work.chosen}
    record.part(f"{name} | fedpfl, one batch", ours(**at_once), 20)
    if options.device == "cuda":
        record.part(f"{name} | fedpfl, one batch, float32", ours(precision="float32"), 20)
        record.part(f"{name} | fedpfl, one batch, bf16", ours(precision="bf16"), 20)
    record.part(f"{name} | fedpfl, one batch, tested after each round", ours(**at_once, **{"evaluate-every": 1}), 20)
    loops = {
        "stacked by hand, CUDA graphs": StackedLoop, "straight loop, CUDA graphs": GraphLoop, "straight loop": Loop,
    }  # fmt: skip
    for title, loop in loops.items():
        record.part(f"{name} | {title}", lambda loop=loop: told(loop(work, data, options).seconds()), 20)

    def theirs(peer: str, processes: int) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            runs = [peer_seconds(peer, work, data, options, processes) for _ in range(options.runs)]
            return told([second for run in runs for second in run], **{"peak GiB": None})

        return run

    for title, peer, processes in (
        ("pfl-research", "pfl-research", 1), (f"pfl-research, {SEVERAL} processes", "pfl-research", SEVERAL),
        ("fluke", "fluke", 1),
    ):  # fmt: skip
        record.part(f"{name} | {title}", theirs(peer, processes), 45 * options.runs)
    record.part(f"{name} | fedpfl, one after the other", ours(**{"clients-at-once": 1}), 40)
    if options.device == "cuda":
        record.part(f"{name} | idle", lambda: idle(work, data, options), 20)


def idle(work: Work, data: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the share of a round's time in which the card does nothing, and what takes the most time.

    The profiler measures the card's work in one round. The round before runs without it and gives the round's seconds.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])

    class Watch(Marks):
        def round_ended(self, rule: Any, done: Any, state: Any) -> bool:
            torch.cuda.synchronize()
            super().round_ended(rule, done, state)
            if done.number == WARM_UP + 1:
                profiler.__enter__()
            elif done.number == WARM_UP + 2:
                profiler.__exit__(None, None, None)
            return False

    values = {**settings_of(work, options), "num-server-rounds": WARM_UP + 2 + LAST}
    seconds = fedpfl_rounds(values, data, Watch())["seconds"][WARM_UP]
    on_card = [one for one in profiler.events() if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    busy = covered([(one.time_range.start, one.time_range.end) for one in on_card]) / 1e6
    averages = profiler.key_averages()
    kernels = sorted(averages, key=lambda one: -one.self_device_time_total)[:12]
    calls = sorted(averages, key=lambda one: -one.self_cpu_time_total)[:12]
    return {
        "seconds": seconds, "busy": busy, "idle share": max(0.0, 1 - busy / seconds),
        "device": [[one.key[:100], one.count, one.self_device_time_total / 1e6] for one in kernels],
        "cpu": [[one.key[:100], one.count, one.self_cpu_time_total / 1e6] for one in calls],
    }  # fmt: skip


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans: kernels of several streams may overlap."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def measure_methods(options: argparse.Namespace, record: Record) -> None:
    """Run every method two rounds on the CPU, with several seeds, and on the device: accuracies, distances, seconds."""
    rng = np.random.default_rng(options.seed)
    centres = rng.normal(size=(10, 1, 16, 16)).astype(np.float32)

    def part(size: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 10, size)
        return centres[y] + rng.normal(size=(size, 1, 16, 16)).astype(np.float32), y

    data = [(*part(40 + 10 * client), *part(40)) for client in range(4)]
    for name in sorted(methods())[:: 12 if options.small else 1]:

        def run(name: str = name) -> dict[str, Any]:
            values: dict[str, Any] = {
                "method": name, "model": "small-cnn", "num-server-rounds": 2, "evaluate-every": 1, "batch-size": 10,
                "seed": options.seed, "local-epochs": 4, "learning-rate": 0.02,
            }  # fmt: skip
            if issubclass(methods().get(name), AdapterMethod):
                values["trainable"] = "lora"
            runs = {
                "cpu": fedpfl_rounds({**values, "device": "cpu"}, data),
                "batch": fedpfl_rounds({**values, "device": options.device, "clients-at-once": 4}, data),
                "alone": fedpfl_rounds({**values, "device": options.device, "clients-at-once": 1}, data),
            }
            ways = {
                way: {
                    "accuracy": run["lines"][-1]["personalised"]["weighted"], "seconds": run["seconds"],
                    "distance": _distance(runs["cpu"]["arrays"], run["arrays"]),
                }
                for way, run in runs.items()
            }  # fmt: skip
            others = [
                fedpfl_rounds({**values, "device": "cpu", "seed": options.seed + more}, data)["lines"][-1]
                for more in range(1, SEEDS)
            ]
            accuracies = [ways["cpu"]["accuracy"], *(line["personalised"]["weighted"] for line in others)]
            return {**ways, "accuracy of seeds": accuracies, "one after the other": runs["batch"]["alone"]}

        record.part(f"method | {name}", run, 5)


def _distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Return ‖a − b‖ / ‖a‖ of the server's arrays."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    apart = sum(float(np.square(a[name].astype(np.float64) - b[name]).sum()) for name in a)
    whole = sum(float(np.square(a[name].astype(np.float64)).sum()) for name in a)
    return (apart / whole) ** 0.5 if whole else 0.0


PARTS = {"works": measure_works, "methods": measure_methods}


def measure(options: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    if options.needs:
        print("\n".join(f"{name}: {what}" for name, what in NEEDS.items()))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("--device cuda: PyTorch finds no GPU; --device cpu --small tries the script without one")
    torch.manual_seed(options.seed)
    record = Record(options.record, options)
    for name in options.parts:
        PARTS[name](options, record)


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="gpu.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to compute (%(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny works, to try the script")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="what to measure (all)")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all of it (%(default)s)")
    parser.add_argument("--runs", type=count, default=2, help="of each work by fedpfl and the peers (%(default)s)")
    parser.add_argument("--record", type=Path, help="the JSON file to write")
    parser.add_argument("--seed", type=count, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--commit", default="", help="what is measured, for the record")
    parser.add_argument("--needs", action="store_true", help="list what the machine must have")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
