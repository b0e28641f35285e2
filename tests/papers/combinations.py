"""What the papers' own sizes are: each file of configs/ and each cell of experiments/, equal ones together."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpfl.data import table
from fedpfl.launch.shipped import experiments
from fedpfl.methods.base import in_classifier
from fedpfl.setup.all_settings import all_settings, keys_of, tagged
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.study.description import load
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.store import PlannedRun, Store, plan

ROOT = Path(__file__).resolve().parents[2]
# Where scripts of experiments would put their data; stands for it in settings.
NOWHERE = Path("/nowhere")

# What decides how long and how often is measured, and not what a client does in a round.
MEASURING = tagged("idle") | {
    "seed", "num-server-rounds", "fraction-train", "evaluate-every", "evaluate-global", "evaluate-trained",
    "diagnostics", "new-clients", "min-replies", "threads", "device",
}  # fmt: skip

# Numbers that a table goes through step by step: what trains with the least and the greatest of them trains with those
# between. Others (a layer, a variant, a data set) are always told apart.
GRADED = (
    "dirichlet-alpha", "classes-per-client", "feddecomp-rank-conv", "feddecomp-rank-linear", "feddecomp-lora-epochs",
    "factorized-fl-l1", "fedfac-tau", "fedfac-kappa", "fedfac-layers", "fedsplit-shared",
)  # fmt: skip

# CPU milliseconds a training sample (Intel Xeon 2.5 GHz, one core), for nothing but the order: the cheapest first.
MILLISECONDS = {
    "convnet": 2.0, "resnet8": 1.8, "resnet10": 3.4, "resnet9": 26.0, "resnet18": 8.3, "vgg16": 59.0,
    "transformer": 1.4, "char-lstm": 7.1, "fedavg-cnn": 0.9, "mlp-200": 0.03,
}  # fmt: skip
TINY = 3.3  # times as long with 64×64 as with 32×32 pixels
ALONE = 3.2  # times as long with B 1 as with B 20
# Times as long as FedAvg's round.
METHODS = {
    "fedem": 3.5, "ditto": 2.0, "fedreg": 2.5, "fedrod": 1.3, "per-fedavg": 2.0, "pfedsd": 1.4, "pfedgate": 2.5,
    "factorized-fl": 1.2, "factorized-fl-plus": 1.2, "pfedpara": 1.3, "fedrep": 2.0, "gpfl": 1.4, "fedbabu": 1.5,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where settings come from: a file and, of an experiment, row and column."""

    file: str
    row: str = ""
    column: str = ""

    def __str__(self) -> str:
        inside = f": {self.row} / {self.column}" if self.row else ""
        return f"{self.file}{inside}"


@dataclass(frozen=True)
class Whole:
    """A whole run of a combination: what :data:`MEASURING` says of it, and with how many seeds it is wanted."""

    rounds: int
    fraction_train: float
    evaluate_every: int
    new_clients: float
    seeds: int


@dataclass
class Combination:
    """Settings at the papers' size that clients train with in some cells, told apart from all others.

    Attributes
    ----------
    settings : dict
        All of them, as the first of these places has them.
    places : list of Place
    wholes : list of (str, Whole)
        The distinct runs of these places, each with its file.
    generate : tuple of str
        Script and arguments that make its data.
    between : tuple of str
        Keys of combinations between whose numbers it lies; nothing is run for it unless wanted.
    """

    settings: dict[str, Any]
    places: list[Place] = field(default_factory=list)
    wholes: list[tuple[str, Whole]] = field(default_factory=list)
    generate: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Name of the combination: it follows from its settings alone."""
        digest = hashlib.sha256(json.dumps(counted(self.settings), sort_keys=True).encode()).hexdigest()[:8]
        data = Path(self.settings["data"]).stem if self.settings["dataset"] == "npz" else self.settings["dataset"]
        return f"{self.settings['method']}-{data}-{self.settings['model']}-{digest}"

    @property
    def cost(self) -> float:
        """Roughly how long it takes in comparison with others."""
        s = self.settings
        milliseconds = MILLISECONDS.get(s["model"], 1.0) * METHODS.get(s["method"], 1.0) * s["local-epochs"]
        milliseconds *= TINY if s["dataset"] == "tiny-imagenet" else 1
        return milliseconds * (ALONE if s["batch-size"] == 1 else 1) * samples_of_a_client(s)


def counted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which combinations are told apart, the same ones for whoever's home has the data."""
    home = f"{Path.home()}/"
    # A setting of all methods at its default does not count, so that a new one changes no key.
    fields = all_settings()
    usual = {key: fields[key].default for key in keys_of()}
    return {
        key: value.replace(home, "~/") if isinstance(value, str) else value
        for key, value in settings.items() if key not in MEASURING and not (key in usual and value == usual[key])
    }  # fmt: skip


def without_idle_head(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without ``personal-head`` where the method keeps its classifier on the client anyway."""
    if not settings["personal-head"]:
        return dict(settings)
    (info,) = (info for info in table() if info.name == settings["dataset"])
    changed = {**settings, "personal-head": False}
    config = Config.parse(changed)
    height, width, channels = map(int, info.shape.split("×"))
    _, sharing = assemble(config, (channels, height, width), int(info.classes))
    return dict(settings) if any(map(in_classifier, sharing.shared)) else changed


def samples_of_a_client(settings: Mapping[str, Any]) -> float:
    """Return about how many samples the mean client has for training."""
    if settings["partitioner"] == "dirichlet-client":
        return float(settings["train-samples"])
    info = {info.name: info.size for info in table()}
    own = "20,000" if settings["model"] == "mlp-200" else "245,000"  # the simulation's, or FEMNIST's
    size = own if settings["dataset"] == "npz" else info[settings["dataset"]]
    samples = sum(int(n.replace(",", "")) for n in size.split(" + ")) * (1 - settings["test-fraction"])
    # The five domains are half of CIFAR-100's classes.
    return samples / settings["num-clients"] / (2 if settings["partitioner"] == "domains" else 1)


def combinations() -> list[Combination]:
    """Return all combinations, the cheapest first."""
    found: dict[str, Combination] = {}
    for place, run, seeds in _runs():
        one = Combination(without_idle_head(run.settings), generate=run.generate)
        one = found.setdefault(one.key, one)
        one.places.append(place)
        s = run.settings
        whole = Whole(run.rounds, s["fraction-train"], s["evaluate-every"], s["new-clients"], seeds)
        if (place.file, whole) not in one.wholes:
            one.wholes.append((place.file, whole))
        # What is measured besides in one of the places is measured here.
        one.settings["evaluate-global"] |= s["evaluate-global"]
        one.settings["diagnostics"] |= s["diagnostics"]
    listed = sorted(found.values(), key=lambda one: (one.cost, one.key))
    _thin_out(listed)
    return listed


def by_column(listed: Iterable[Combination]) -> dict[tuple[str, str], list[Combination]]:
    """Return the combinations of each file and column; a file of configs/ has one, without a name."""
    columns: dict[tuple[str, str], list[Combination]] = {}
    for one in listed:
        for place in one.places:
            columns.setdefault((place.file, place.column), []).append(one)
    return columns


def one_for_each_column(listed: Sequence[Combination]) -> list[Combination]:
    """Return few combinations of which each file of configs/ and each column of an experiment has one, in their order.

    A column is settings that a row's method trains with (data, division, network). Its combination is of the paper's
    own method, where it has one. One that lies between others is replaced by these.
    """
    columns = by_column(listed)
    taken: dict[str, Combination] = {}
    # Columns with the least choice first, so that what they need serves the others, too.
    for (file, _), ones in sorted(columns.items(), key=lambda item: (len(item[1]), item[0])):

        def burden(one: Combination, name: str = Path(file).stem) -> tuple[bool, int, float]:
            new = [end for end in ends(one, listed) if end.key not in taken]
            return not name.startswith(one.settings["method"]), len(new), sum(end.cost for end in new)

        taken.update((end.key, end) for end in ends(min(ones, key=burden), listed))
    return [one for one in listed if one.key in taken]


def ends(one: Combination, listed: Sequence[Combination]) -> list[Combination]:
    """Return the combination, or, if it lies between others, these."""
    if not one.between:
        return [one]
    return [end for other in listed if other.key in one.between for end in ends(other, listed)]


def _runs() -> Iterator[tuple[Place, PlannedRun, int]]:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        run = plan(tomllib.loads(path.read_text(encoding="utf-8")), seed=1)
        yield Place(f"configs/{path.name}"), run, 1
    for path in experiments(ROOT / "experiments").values():
        experiment = load(path)
        measured = ExperimentGrid(experiment, "paper", Store(NOWHERE), seeds=1)
        for (row, column, _), run in measured.runs.items():
            yield Place(str(path.relative_to(ROOT)), row, column), run, experiment.scale("paper").seeds


def _thin_out(listed: Iterable[Combination]) -> None:
    """Note of each combination that lies between others between which it does.

    Those of configs/ are never left out: these files are run as they are.
    """
    listed = list(listed)
    for graded in GRADED:
        # In turn, so that of a table of two such numbers the four corners stay.
        groups: dict[str, list[Combination]] = {}
        for one in listed:
            value = one.settings.get(graded)
            if one.between or value is None or _number(value) is None:
                continue
            others = {key: value for key, value in counted(one.settings).items() if key != graded}
            groups.setdefault(json.dumps(others, sort_keys=True), []).append(one)
        for group in groups.values():
            ordered = sorted(group, key=lambda one: _number(one.settings[graded]) or 0.0)
            ends = ordered[0].key, ordered[-1].key
            for one in ordered[1:-1]:
                if not any(place.file.startswith("configs/") for place in one.places):
                    one.between = ends


def _number(value: Any) -> float | None:
    """Return a number, also of a text that is one; None of one that is not."""
    try:
        return float(value)
    except ValueError:
        return None
