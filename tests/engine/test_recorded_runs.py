"""One recorded run of every method: the same bits from workers, after a kill, in exports; what leaves a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import (
    FEW_SAMPLES,
    NO_PLAIN_MODEL,
    STAND_FOR_ALL,
    Killed,
    LocalGrid,
    add_small_bn,
    arrays,
    check_recorded,
    engine,
    federation,
    quick,
    run_federation,
)

from fedpfl.api.runs import Run
from fedpfl.core.errors import NoPlainModel
from fedpfl.core.extra_arrays import SERVER, Extra
from fedpfl.core.payload import Payload
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.layers.memory import in_twin
from fedpfl.methods import Method, fedala, fedfomo, fedselect, methods
from fedpfl.methods.bases.kept_models import KeepsTrained
from fedpfl.methods.bases.submodels import SubModelMethod
from fedpfl.results.run_folder import RunFolder
from fedpfl.rules import running_mean
from fedpfl.setup.assembly import assemble, extras_of
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

CLIENTS = 4


class Recorded(NamedTuple):
    """A finished run, all messages of it, and the settings with which it is made again."""

    place: Path
    settings: dict[str, Any]
    folder: RunFolder
    grid: LocalGrid

    def again(self, name: str) -> dict[str, Any]:
        """Return the settings of the same run in another place."""
        return federation(self.place / name, CLIENTS, **self.settings)


def record(place: Path, method: str, **options: Any) -> Recorded:
    """Run a federation over messages that are answered in any order; in each round three of the four clients train."""
    settings = {
        "method": method, "num_clients": CLIENTS, "num_server_rounds": 2, "fraction_train": 0.75, "threads": 1,
        **FEW_SAMPLES, **options,
    }  # fmt: skip
    values = federation(place / "recorded", CLIENTS, **settings)
    grid = LocalGrid(CLIENTS, values, shuffle=True)
    return Recorded(place, settings, run_federation(grid, values), grid)


@pytest.fixture(
    scope="module",
    # The tests of one run stay in one process, which makes it once.
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"recorded {name}")) for name in methods()],
)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Record a run; three replies are added up as those of many clients are, in groups: of two, and of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_mean, "MIN_GROUPS", 1)
        patch.setattr(running_mean, "MAX_GROUP", 2)
        takes_slices = issubclass(methods()[request.param], SubModelMethod)
        model = {"client_models": "1:@0.5,3:@0.25"} if takes_slices else {"model": add_small_bn(patch)}
        yield record(tmp_path_factory.mktemp(request.param), request.param, **quick(request.param), **model)


def result(folder: RunFolder, place: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return all that does not depend on the clock: the arrays of server and clients, the rounds without seconds."""
    rounds = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in folder.metrics()]
    return {name: array.tobytes() for name, array in arrays(folder, place).items()}, rounds


def test_any_number_of_workers_and_flower_s_messages_in_any_order_give_the_same_bits(recorded):
    expected = result(recorded.folder, recorded.place / "recorded")
    # The killed run below goes on without workers.
    for workers in (0, 1, 2, 5) if recorded.settings["method"] in STAND_FOR_ALL else (2,):
        values = recorded.again(str(workers))
        with SimulationTransport(Config.parse(values), workers) as transport:
            run = run_federation(transport, values)
        assert result(run, recorded.place / str(workers)) == expected


def test_a_killed_and_resumed_run_ends_with_the_same_bits(recorded):
    values, trained = recorded.again("killed"), []

    def kill(kind, client, payload):
        trained.extend([payload.config["round"]] if kind == "train" else [])
        if trained.count(2) == 2:
            raise Killed  # in the middle of round 2: one client has trained and stored its personal arrays

    with pytest.raises(Killed):
        run_federation(LocalGrid(CLIENTS, values, intercept=kill), values)
    values["resume"] = True
    over_messages = recorded.settings["method"] in STAND_FOR_ALL
    resumed = run_federation((LocalGrid if over_messages else engine)(CLIENTS, values), values)
    assert [line["round"] for line in resumed.metrics()] == [1, 2]
    assert result(resumed, recorded.place / "killed") == result(recorded.folder, recorded.place / "recorded")


def test_the_models_of_its_clients_have_the_recorded_accuracies(recorded):
    run, method = Run(recorded.folder), recorded.settings["method"]
    if method in NO_PLAIN_MODEL:
        with pytest.raises(NoPlainModel, match=rf"{method} .+$"):
            run.model(client=0)
        return
    run.export()
    check_recorded(run)


def test_bytes_are_those_of_the_messages(recorded):
    sent = {"up": 0, "down": 0}
    for kind, _, message, reply in recorded.grid.log:
        for way, content in (("down", message), ("up", reply)) if kind != "query" else ():
            sent[way] += sum(record.count_bytes() for record in content.values())
    lines = recorded.folder.metrics()
    assert {way: sum(line[f"bytes_{way}"] for line in lines) for way in sent} == sent


def test_nothing_personal_leaves_a_client(recorded):
    require_nothing_personal(recorded)


class SendsNow(Method):
    """Sends an array in round 1, and another one never."""

    name, paper, shares = "sends-now-and-then", "none", "everything"
    extras = (Extra("first", SERVER, "a 1", (1,), required=False), Extra("never", SERVER, "none", (1,), required=False))

    def conclude(self, local):
        return Payload(arrays={"first": np.ones(1, np.float32)} if local.round == 1 else {})


def test_an_array_that_is_not_required_may_be_missing(tmp_path):
    with as_setting("method", SendsNow) as method:
        sent = require_nothing_personal(record(tmp_path, method))
    assert [names - {"shared"} for names in sent] == 3 * [{"first"}] + 3 * [set()]


def is_copy(method, name):
    """Return whether a personal array is a copy of what the client sends, once it has trained: no secret then."""
    prefixes = {"fedala": f"{fedala.OWN}.", "fedfomo": f"{fedfomo.BEFORE}.", "fedselect": f"{fedselect.TRAINED}."}
    return name.startswith(prefixes.get(method.name, ())) or (isinstance(method, KeepsTrained) and in_twin(name))


def require_nothing_personal(run: Recorded) -> list[set[str]]:
    """Look at all that the clients of a run have sent; return the names of the arrays of each trained reply."""
    config, task = Config.parse(run.grid.run_config), run.folder.task()
    rule = config.method.aggregation.rule
    model, sharing = assemble(config, tuple(task["input_shape"]), task["num_classes"])
    initial = sharing.get_personal()
    besides = extras_of(config, model, sharing).names(SERVER)
    state = run.place / "recorded" / "state"
    stored = [item for p in state.rglob("client-*/round-*.safetensors") for item in load_file(p).items()]
    assert bool(stored) == bool(sharing.personal)
    replies = [(kind, reply) for kind, _, _, reply in run.grid.log]
    sent = b"".join(
        array.data
        for _, reply in replies
        for name, array in reply.array_records.get("arrays", {}).items()
        if name not in besides
    )
    # A rule that gets personal arrays says so.
    for name, array in () if rule.sees_personal else stored:
        if is_copy(config.method, name):
            continue
        # Any 16 bytes in a row of a personal array: a copy would hold them. Zeros prove nothing, and a weight that no
        # training has moved is what everybody starts from.
        for offset in range(0, array.size - 4, max(1, array.size // 20)):
            piece, start = (np.ascontiguousarray(a).reshape(-1)[offset : offset + 4] for a in (array, initial[name]))
            if np.all(piece != 0) and np.all(piece != start):
                assert piece.tobytes() not in sent
    trained = []
    for kind, reply in replies:
        vector = {"shared", "shared-kept"} if sharing.layout.sparse else {"shared"}
        vector = vector if rule.takes_shared else set()
        required = {extra.name for extra in config.method.extras if extra.goes(SERVER) and extra.required}
        names = set(reply.array_records.get("arrays", {}))
        assert vector | required <= names <= vector | {*besides} if kind == "train" else not names
        trained += [names] if kind == "train" else []
        assert all(isinstance(value, (int, float)) for value in reply.metric_records["metrics"].values())
    return trained
