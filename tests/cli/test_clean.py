"""``fedpfl clean``: what is listed, what goes, and what never does."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from in_process import call_fedpfl

from fedpfl.cli import clean
from fedpfl.results.run_folder import RunFolder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of runs a, b and c (a copy of a), their states, one of a run that is gone, and a device's."""
    monkeypatch.setattr("fedpfl.cli.clean.output_dir", lambda: tmp_path / "runs")
    monkeypatch.setattr("fedpfl.cli.clean._state_dir", lambda: tmp_path / "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in "abc":
        folder = tmp_path / "runs" / name
        (folder / "checkpoint").mkdir(parents=True)
        (folder / "checkpoint" / "round-000001.safetensors").write_bytes(bytes(3000))
        (folder / "config.toml").write_text("")
        (folder / "summary.md").write_text("done")
        (folder / "task.json").write_text(json.dumps({"state_key": "b-1" if name == "b" else "a-1"}))
    for key in ("a-1", "b-1", "gone-1", "device-1"):
        client = tmp_path / "state" / key / "client-00000"
        client.mkdir(parents=True)
        (client / "round-000001.safetensors").write_bytes(bytes(5000))
    (tmp_path / "state" / "device-1" / "client-00000" / "secret").write_text("x")
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    (tmp_path / "state" / "Documents").mkdir()
    (tmp_path / "state" / "Documents" / "thesis.tex").write_text("x")
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    done = call_fedpfl("clean", *arguments)
    return done.exit_code, done.output


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    "arguments", [(), ("b",), ("b", "--state"), ("--orphans",), ("--json",), ("--remove",), ("no",)]
)
def test_nothing_goes_unasked(place, arguments):
    before = files(place)
    code, _ = call(*arguments)
    assert code == (2 if arguments in (("--remove",), ("no",)) else 0)
    assert files(place) == before


def test_the_list_has_every_run_and_what_belongs_to_none(place, monkeypatch):
    shown = {one["run"]: one for one in json.loads(call("--json")[1])}
    assert shown.keys() == {"a", "b", "c", "", str(place / "state" / "device-1")}
    assert shown["b"]["folder"] > 3000 and shown["b"]["state"] == 5000
    assert shown[""]["paths"] == [str(place / "state" / "gone-1")]
    assert "a copy" in shown["a"]["why_kept"]
    monkeypatch.setenv("COLUMNS", "500")
    _, output = call()
    assert (output.count(" no "), output.count(" yes ")) == (0, 3)  # nobody here knows it of a device's run


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        (["b"], ("runs/b/", "state/b-1/")),
        (["b", "--state"], ("runs/b/checkpoint/", "state/b-1/")),  # what a run needs to go on
        (["--orphans"], ("state/gone-1/",)),  # but never a device's arrays
    ],
)
def test_what_is_named_goes_and_nothing_else(place, arguments, gone):
    before = files(place)
    assert call(*arguments, "--remove")[0] == 0
    assert before - files(place) == {name for name in before if name.startswith(gone)}


@pytest.mark.parametrize(("days", "kept"), [(2, False), (0.5, True), (-2, True)])
@pytest.mark.parametrize("key", ["device-1", "gone-1"])
def test_arrays_of_no_run_here_do_not_go_while_their_run_may_go_on(place, key, days, kept):
    state = place / "state" / key
    os.utime(state / "client-00000", (time.time() - days * 86400,) * 2)  # when a round's file was last written there
    before = files(place)
    code, output = call(f"{state}/" if key == "device-1" else "--orphans", "--remove")
    assert code == 0
    assert before - files(place) == {name for name in before if name.startswith(f"state/{key}/") and not kept}
    assert (f"kept: {state if key == 'device-1' else key}: written within a day" in output) == kept


@pytest.mark.parametrize("key", ["../Documents", "", ".", "..", "/etc", "b-1/client-00000", "b-1/../../runs"])
def test_a_run_folder_of_somebody_else_names_no_other_folder(place, key):
    (place / "runs" / "a" / "task.json").write_text(json.dumps({"state_key": key}))
    before = files(place)
    for arguments in (["a"], ["a", "--state"]):
        code, output = call(*arguments, "--remove")
        assert (code, files(place)) == (0, before) and "its task.json cannot be read" in output


@pytest.mark.parametrize("arguments", [("b",), ("b", "--state")])
def test_a_run_that_begins_again_while_it_is_counted_keeps_everything(place, monkeypatch, arguments):
    before = files(place)
    monkeypatch.setattr(clean, "_print", lambda *_: held.enter_context(RunFolder(place / "runs" / "b").exclusive()))
    with ExitStack() as held:
        code, output = call(*arguments, "--remove")
    assert (code, files(place)) == (1, before) and "active in another process" in output


def test_what_is_needed_or_in_use_or_a_device_s_model_stays(place):
    before = files(place)
    device = str(place / "state" / "device-1")
    for arguments, why in ((["a"], "a copy"), ([device, "--state"], "its models would go, too")):
        code, output = call(*arguments, "--remove")
        assert (code, files(place)) == (0, before) and why in output
    with RunFolder(place / "runs" / "b").exclusive():
        code, output = call("b", "--remove")
    assert (code, files(place)) == (0, before) and "it is running" in output


def test_a_run_whose_task_is_damaged_keeps_everything_that_might_be_its(place):
    (place / "runs" / "b" / "task.json").write_text("[")
    before = files(place)
    assert call("b", "--remove")[0] == 0
    assert call("--orphans", "--remove")[0] == 2
    assert files(place) == before


def test_what_goes_while_it_is_counted_does_not_count(place, monkeypatch):
    @contextmanager
    def scandir(path):
        with real(path) as entries:
            present = list(entries)
        for entry in present:
            Path(entry).rename(f"{entry.path}-gone")
        yield present

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert clean._size(place / "state") == clean._size(place / "runs" / "a") == 0


def test_a_link_is_not_followed(place):
    outside = place / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x")
    (place / "runs" / "b" / "link").symlink_to(outside)
    assert call("b", "--remove")[0] == 0
    assert (outside / "mine").is_file() and not (place / "runs" / "b").exists()


@pytest.mark.parametrize("gone", [(), ("config.toml",)])
def test_what_an_interrupted_removal_left_is_no_run_and_goes_by_its_name(place, gone):
    left = (place / "runs" / "b").rename(place / "runs" / ".b.removed")
    for name in gone:
        (left / name).unlink()
    assert {"a", "b", "c"} <= {one["run"] for one in json.loads(call("--json")[1])}
    assert call("b", "--remove")[0] == 0
    assert {path.name for path in (place / "runs").iterdir()} == {"a", "c"}
