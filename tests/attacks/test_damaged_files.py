"""A damaged file of a run is noticed: the run ends in the same bits as without the damage, or in one line."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import stat
import tomllib
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import Killed, LocalGrid, arrays, federation, run_federation

import fedpfl
from fedpfl.client.client_number import stored_number
from fedpfl.client.state import ClientState
from fedpfl.core.checksummed_files import read_arrays, write_arrays
from fedpfl.core.errors import DamagedFile, FedpflError, StateError
from fedpfl.core.payload import Payload
from fedpfl.results.export import export_personal
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.run_store import Store, plan

ROUNDS = 3
SETTINGS = {
    "method": "fedper", "dataset": "digits", "partitioner": "dirichlet-client", "train_samples": 32, "test_samples": 32,
    "model": "mlp", "num_clients": 3, "local_epochs": 1, "batch_size": 32, "threads": 1, "seed": 3,
    "dp_noise_multiplier": 0.1,
}  # fmt: skip
SECONDS = ("seconds", "seconds_train", "seconds_evaluate")


@dataclass(frozen=True)
class Place:
    """A run's folder and its clients' state, which tests copy and damage."""

    root: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.root / "runs" / "run")

    @property
    def state(self) -> Path:
        return next((self.root / "state").iterdir())

    def copy(self, to: Path) -> Place:
        shutil.copytree(self.root, to)
        return Place(to)

    def begin(self, rounds: int) -> None:
        places = {"run_name": "run", "output_dir": self.root / "runs", "state_dir": self.root / "state"}
        fedpfl.run(**SETTINGS, **places, num_server_rounds=rounds, workers=0, quiet=True)

    def resume(self, rounds: int = ROUNDS) -> dict:
        """Go on as `fedpfl run --resume` does; return all that the run has left, without times."""
        fedpfl.run(resume=self.run.path, state_dir=self.root / "state", num_server_rounds=rounds, workers=0, quiet=True)
        run = self.run.path
        models = {
            path.name: load_file(path) for path in (run / "global.safetensors", *run.glob("personal/*.safetensors"))
        }
        lines = [{k: v for k, v in line.items() if k not in SECONDS} for line in self.run.metrics()]
        return {"server and clients": arrays(self.run, self.root), "models": models, "metrics": lines}

    def checkpoint(self, number: int) -> Path:
        return self.run.path / "checkpoint" / f"round-{number:06d}.safetensors"

    def personal(self, client: int, number: int) -> Path:
        return self.state / f"client-{client:05d}" / f"round-{number:06d}.safetensors"


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a run that has finished, and what it has left."""
    place = Place(tmp_path_factory.mktemp("finished") / "run")
    place.begin(ROUNDS)
    return place, place.copy(place.root.with_name("whole")).resume()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a run that was killed in its last round, after a client had trained, and what it leaves when resumed."""
    place = Place(tmp_path_factory.mktemp("killed") / "run")
    save = ClientState.save

    def die(self, stored, server_round, started_from):
        if server_round == ROUNDS and self._client == 1:
            raise Killed
        save(self, stored, server_round, started_from)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ClientState, "save", die)
        place.begin(ROUNDS)
    return place, place.copy(place.root.with_name("whole")).resume()


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def damage(place: Place, seed: int) -> tuple[Path, str]:
    """Flip bits, cut, or zero a block of a file, as a seed says; return the file, and what was done."""
    rng = random.Random(f"damage {seed}")
    files = sorted(path for path in place.root.rglob("*") if path.is_file() and path.stat().st_size)
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    size, kind = len(content), rng.choice(("flip", "cut", "zero"))
    position = rng.randrange(size)
    if kind == "cut":
        del content[position:]
    elif kind == "zero":
        length = min(size - position, rng.randint(1, rng.choice((8, 64, 4096))))
        content[position : position + length] = bytes(length)
    else:
        for _ in range(rng.choice((1, 1, 2, 8))):
            content[rng.randrange(size)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return path, f"seed {seed}: {kind} at {position} of {size} bytes of {path.relative_to(place.root)}"


@pytest.mark.parametrize(
    "seeds",
    [range(48), *(pytest.param(range(first, first + 100), marks=pytest.mark.attacks) for first in range(0, 500, 100))],
)
def test_any_damage_ends_in_the_same_bits_or_in_one_line(finished, killed, tmp_path, seeds):
    ended = {"same": 0, "refused": 0}
    for seed in seeds:
        place, whole = (finished, killed)[seed % 2]
        place = place.copy(tmp_path / str(seed))
        path, done = damage(place, seed)
        try:
            resumed = place.resume()
        except FedpflError as error:
            lines = [str(error)]
        else:
            lines = [reason for line in resumed["metrics"] for reason in line.get("failed", {}).values()]
            assert lines or same(resumed, whole), done
        assert all(f"{path}: is damaged or was changed" in line and "\n" not in line for line in lines), (done, lines)
        ended["refused" if lines else "same"] += 1
        shutil.rmtree(place.root)
    assert min(ended.values()) >= len(seeds) / 10, ended


def damage_state(path: Path) -> None:
    """Flip a bit of an array."""
    flip(path, path.stat().st_size - 2)


@pytest.mark.parametrize("run", ["finished", "killed"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(request, tmp_path, caplog, run):
    place, whole = request.getfixturevalue(run)
    place = place.copy(tmp_path / "run")
    newest = place.checkpoint(ROUNDS - (run == "killed"))
    damage_state(newest)
    with pytest.raises(DamagedFile, match=newest.name):  # what a reader of models has to know
        export_personal(place.run)
    assert same(place.resume(), whole)
    assert f"{newest}: is damaged or was changed: its content is not what was written; round " in caplog.text


def test_without_an_intact_checkpoint_nothing_changes(killed, tmp_path):
    place = killed[0].copy(tmp_path / "run")
    for number in (1, 2):
        damage_state(place.checkpoint(number))
    before = {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(StateError, match=r"round-000002.*round-000001.*no earlier round to resume from is stored:"):
        place.resume()
    (place.run.path / "failed.txt").unlink()
    assert {path: path.read_bytes() for path in before} == before


def test_only_the_checkpoint_that_is_not_intact_is_given_up(killed, tmp_path):
    place = killed[0].copy(tmp_path / "run")
    damage_state(place.checkpoint(1))
    assert same(place.resume(), killed[1])


@pytest.mark.parametrize("run", ["finished", "killed"])
def test_a_client_s_damaged_arrays_are_trained_again(request, tmp_path, caplog, run):
    place, whole = request.getfixturevalue(run)
    place = place.copy(tmp_path / "run")
    path = place.personal(0, ROUNDS - (run == "killed"))
    damage_state(path)
    assert same(place.resume(), whole)
    assert f"{path}: is damaged or was changed" in caplog.text


def test_a_client_without_intact_arrays_ends_the_resume_or_is_given_up(killed, tmp_path):
    place = killed[0].copy(tmp_path / "run")
    for number in (1, 2):
        damage_state(place.personal(0, number))
    with pytest.raises(StateError, match=r"client-00000/round-000002.*without a client's file this client alone fails"):
        place.resume()
    for number in (1, 2):
        place.personal(0, number).unlink()
    with pytest.raises(StateError, match=r"client-00000/round-000002\.safetensors: cannot be read"):  # the export
        place.resume()
    (line,) = place.run.metrics()[ROUNDS - 1 :]
    assert line["clients"] == [1, 2]
    assert line["failed"].keys() == {"0"}


def test_a_device_s_damaged_arrays_cost_that_device(tmp_path):
    values = federation(tmp_path, 3, method="fedper", model="mlp", num_server_rounds=3, local_epochs=1)

    def harm(kind, client, payload):
        if kind == "train" and client == 1 and payload.config["round"] == 2:
            damage_state(next((tmp_path / "state").glob("*/client-00001/round-000001.safetensors")))

    lines = run_federation(LocalGrid(3, values, intercept=harm), values).metrics()
    assert [line["clients"] for line in lines] == [[0, 1, 2], [0, 2], [0, 2]]
    assert all("round-000001.safetensors: is damaged or was changed" in line["failed"]["1"] for line in lines[1:])


def change_lines(place: Place, change) -> None:
    path = place.run.path / "metrics.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def other_accuracy(line: str) -> str:
    return re.sub(r'"weighted": 0\.\d', '"weighted": 0.9', line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "line 1 is of round 2"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 is of round 2"),
        (lambda lines: [other_accuracy(lines[0]), *lines[1:]], "line 1"),
        (lambda lines: [], "it has 0 of 3 rounds"),
    ],
)
def test_no_recorded_round_is_lost_or_changed_in_silence(finished, tmp_path, change, message):
    place = finished[0].copy(tmp_path / "run")
    change_lines(place, change)
    with pytest.raises(StateError, match=rf"metrics\.jsonl: is damaged or was changed: .*{message}"):
        place.resume(ROUNDS + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:-1], lines[-1][:40]],
        lambda lines: [*lines[:-1], lines[-1].rstrip("\n")],
        lambda lines: lines[:-1],
    ],
)
def test_a_lost_last_line_is_a_round_to_repeat(finished, tmp_path, change):
    place = finished[0].copy(tmp_path / "run")
    change_lines(place, change)
    with pytest.raises(DamagedFile, match=rf"metrics\.jsonl: .*it has {ROUNDS - 1} of {ROUNDS} rounds"):
        place.run.history()  # no table has the numbers of fewer rounds
    assert same(place.resume(), finished[1])


def test_damaged_models_of_a_finished_run_are_noticed_and_made_again(finished, tmp_path):
    place = finished[0].copy(tmp_path / "run")
    model = place.run.path / "global.safetensors"
    damage_state(model)
    with pytest.raises(DamagedFile, match=r"global\.safetensors"):
        read_arrays(model)
    personal = place.run.path / "personal" / "client-00001.safetensors"
    damage_state(personal)
    weights = {**SETTINGS, "initial_weights": personal, "run_name": "other", "output_dir": place.root / "runs"}
    with pytest.raises(DamagedFile, match=r"personal/client-00001\.safetensors"):
        fedpfl.run(**weights, state_dir=place.root / "state", num_server_rounds=1, workers=0, quiet=True)
    assert same(place.resume(), finished[1])


def test_a_setting_that_was_edited_is_refused_until_the_edit_is_confirmed(finished, tmp_path):
    place = finished[0].copy(tmp_path / "run")
    path = place.run.path / "config.toml"
    assert tomllib.loads(path.read_text())["method"] == "fedper"
    path.write_text(path.read_text().replace("check-after = 60.0", "check-after = 70.0"))
    with pytest.raises(DamagedFile, match=r"config\.toml: .* \(delete its first line to use it without this check\)"):
        place.resume()
    path.write_text(path.read_text().partition("\n")[2])
    place.resume(ROUNDS + 1)
    assert place.run.config()["check-after"] == 70.0
    assert path.read_text().startswith("# sha256 ")


def without_checksums(place: Place) -> None:
    """Take the checksums out of files, as somebody does who edits them."""
    run = place.run.path
    for path in [*place.state.rglob("*.safetensors"), *run.rglob("*.safetensors")]:
        save_file(load_file(path), path)
    (run / "config.toml").write_text((run / "config.toml").read_text().partition("\n")[2])
    for name in ("task.json", "metrics.jsonl"):
        (run / name).write_text(re.sub(r'^\{"sha256": "\w{64}", ', "{", (run / name).read_text(), flags=re.MULTILINE))


def test_what_a_file_without_checksum_lacks_is_named(killed, tmp_path):
    base = killed[0].copy(tmp_path / "base")
    without_checksums(base)
    names = list(json.loads((base.run.path / "task.json").read_text()))
    for name in ("state_key", "input_shape", "num_classes", "clients"):
        place = base.copy(tmp_path / name)
        path = place.run.path / "task.json"
        path.write_text(json.dumps({key: json.loads(path.read_text())[key] for key in names if key != name}))
        with pytest.raises(FedpflError, match=rf"task\.json|{name}"):
            place.resume()
            export_personal(place.run)
    for name in ("method", "seed", "model"):
        place = base.copy(tmp_path / name)
        path = place.run.path / "config.toml"
        path.write_text(re.sub(rf"^{name} = .*\n", "", path.read_text(), flags=re.MULTILINE))
        with pytest.raises(DamagedFile, match=rf"config\.toml: .*'{name}' is missing"):
            place.run.config()[name]
    place = base.copy(tmp_path / "arrays")
    for number in (1, 2):
        stored = load_file(place.checkpoint(number))
        stored.pop("shared")
        save_file(stored, place.checkpoint(number))
    with pytest.raises(DamagedFile, match=r"round-000002\.safetensors: .*'shared' is missing"):
        place.resume()


def test_damage_of_the_file_with_a_node_s_number_is_noticed(tmp_path):
    settings = {"state-dir": str(tmp_path), "num-clients": 20}

    def asked(**more):
        return stored_number(Payload({"state-key": "run", **more}), settings, "data")

    assert asked(client=12) == 12
    (path,) = tmp_path.rglob("number-*")
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # all but the line's end
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile):
            asked()
        path.write_bytes(whole)
        flip(path, length, length % 8)
        with pytest.raises(DamagedFile):
            asked()


def test_a_damaged_key_of_noise_costs_its_client(killed, tmp_path):
    place = killed[0].copy(tmp_path / "run")
    flip(place.state / "client-00002" / "noise.key", 3)
    last = place.resume()["metrics"][-1]
    assert last["clients"] == [0, 1]
    assert "noise.key: is damaged or was changed" in last["failed"]["2"]


def test_other_readers_need_not_know_of_the_checksums(finished):
    run = finished[0].run
    assert all(load_file(path) for path in run.path.rglob("*.safetensors"))
    assert tomllib.loads((run.path / "config.toml").read_text()) == run.config()
    assert [json.loads(line)["round"] for line in (run.path / "metrics.jsonl").open()] == [1, 2, 3]
    assert json.loads((run.path / "task.json").read_text())["clients"] == 3
    assert all("sha256" not in line for line in (*run.metrics(), run.task()))


def test_arrays_are_stored_as_they_are_whatever_lies_between_their_values(tmp_path):
    written = {
        "columns": np.arange(12, dtype=np.float32).reshape(3, 4).T, "every-other": np.arange(10)[::2],
        "none": np.zeros((0, 3), np.float16), "one": np.array(2.5), "mask": np.array([True, False]),
    }  # fmt: skip
    write_arrays(tmp_path / "arrays", written)
    restored = read_arrays(tmp_path / "arrays")
    assert restored.keys() == written.keys()
    for name, array in written.items():
        assert restored[name].dtype == array.dtype
        assert restored[name].shape == array.shape
        assert np.array_equal(restored[name], array)


def test_nobody_else_may_enter_what_a_run_leaves(tmp_path):
    before = os.umask(0)
    try:
        Place(tmp_path / "made").begin(1)
        Store(tmp_path / "made" / "grid").prepare(plan({"method": "fedavg", "num-clients": 2}, seed=1))
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "made").rglob("*") if path.is_dir()]
    names = {path.name for path in folders}
    assert {"runs", "run", "checkpoint", "personal", "state", "client-00000", "cells"} <= names
    assert {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "made", *folders]} == {0o700}
    arrays = [*(tmp_path / "made").rglob("*.safetensors"), *(tmp_path / "made").rglob("noise.key")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in arrays} == {0o600}


def test_too_many_open_files_names_the_file_or_what_it_was_for(tmp_path, monkeypatch):
    write_arrays(tmp_path / "arrays", {"a": np.zeros(2)})
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        with pytest.raises(StateError) as read:
            read_arrays(tmp_path / "arrays")
        with pytest.raises(OSError, match="Too many open files") as written:
            write_arrays(tmp_path / "arrays", {"a": np.ones(2)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
    assert str(read.value) == f"{tmp_path / 'arrays'}: cannot be read (Too many open files)"
    assert str(tmp_path) in str(written.value)

    def none_left(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(BaseContext, "Pipe", none_left)
    with pytest.raises(FedpflError, match=r"1 worker processes cannot be started \(Too many open files\); use fewer"):
        fedpfl.run(
            **SETTINGS, num_server_rounds=1, workers=1, quiet=True, output_dir=tmp_path, state_dir=tmp_path / "state"
        )
