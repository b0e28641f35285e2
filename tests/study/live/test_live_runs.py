"""What the live page is told of runs."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest
from live_parts import add_round, make_run, round_line, served
from waiting import HANG_SECONDS

from fedpfl.core.errors import ConfigError, DamagedFile
from fedpfl.core.files import locked, write_atomically
from fedpfl.study.live import run_data
from fedpfl.study.live.run_data import list_runs, read_run


def test_a_run_is_told_from_its_beginning_and_then_what_is_new(tmp_path):
    folder = make_run(tmp_path, "one", rounds=2)
    first = read_run(tmp_path, "one")
    assert first["about"]["clients"] == 3
    assert first["about"]["samples"] == [[10, 4], [20, 4], [30, 4]]
    assert first["about"]["counts"] == [[10, 0], [19, 1], [28, 2]]
    assert first["about"]["remarks"] == ["nothing is personal"]
    assert first["about"]["settings"]["num-server-rounds"] == 5
    assert first["rounds"] == [1, 2]
    assert first["each"] == [[0.007, 0.038, 0.069], [0.014, 0.045, 0.076]]
    assert first["personalised"] == pytest.approx([0.038, 0.045])
    assert first["worst"] == [0.007, 0.014]
    assert (first["global"], first["loss"], first["seconds"]) == ([0.5, 0.5], [0.5, 0.5], [0.75, 0.75])
    assert (first["up"], first["down"]) == ([1_000_000] * 2, [2_000_000] * 2)
    assert first["trained"] == [[0, 1, 2]] * 2

    assert read_run(tmp_path, "one", first["since"])["rounds"] == []
    add_round(folder, 3, failed={1: "out of memory"})
    line = round_line(4)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line[:50])
    new = read_run(tmp_path, "one", first["since"])
    assert (new["rounds"], new["failed"], new["more"]) == ([3], [(3, 1, "out of memory")], False)
    assert new["each"] == [[0.021, None, 0.083]]
    assert "about" not in new
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line[50:])
    assert read_run(tmp_path, "one", new["since"])["rounds"] == [4]


def test_classes_have_names_where_all_clients_number_them_alike(tmp_path):
    named = {"about": {"class_names": ["cat", "dog"]}}
    make_run(tmp_path, "one", **named)
    make_run(tmp_path, "permuted", permute_labels=True, **named)
    assert read_run(tmp_path, "one")["about"]["classes"] == ["cat", "dog"]
    assert read_run(tmp_path, "permuted")["about"]["classes"] == []


def test_a_run_whose_last_round_is_repeated_is_told_again(tmp_path):
    folder = make_run(tmp_path, "one", rounds=3)
    since = read_run(tmp_path, "one")["since"]
    # As a resumed run does; it has since recorded more than before.
    write_atomically(folder / "metrics.jsonl", "".join(map(round_line, range(1, 3))).encode())
    for number in (3, 4):
        add_round(folder, number)
    again = read_run(tmp_path, "one", since)
    assert again["rounds"] == [1, 2, 3, 4]
    assert "about" in again


def test_a_long_run_is_told_in_pieces(tmp_path, monkeypatch):
    make_run(tmp_path, "one", rounds=9)
    whole = read_run(tmp_path, "one")
    monkeypatch.setattr(run_data, "MAX_CHUNK", len(round_line(1)) * 2 + 100)
    found, since, pieces, more = [], "", 0, True
    while more:
        piece = read_run(tmp_path, "one", since)
        since, more, pieces = piece["since"], piece["more"], pieces + 1
        found += piece["each"]
    assert found == whole["each"]
    assert pieces > 3
    monkeypatch.setattr(run_data, "MAX_CHUNK", 10)  # a line is longer
    assert read_run(tmp_path, "one")["rounds"] == [1]


def test_states_of_runs(tmp_path):
    running, finished, failed = (make_run(tmp_path, name, rounds=1) for name in ("running", "finished", "failed"))
    make_run(tmp_path, "stopped")
    for folder in (failed, tmp_path / "stopped"):
        (folder / ".lock").touch()
    (finished / "summary.md").touch()
    (failed / "failed.txt").write_text("no client trained\n")
    with locked(running / ".lock"):
        listed = {run["name"]: run for run in list_runs(tmp_path)}
    assert {name: run["state"] for name, run in listed.items()} == {
        "running": "running", "finished": "finished", "failed": "failed", "stopped": "stopped",
    }  # fmt: skip
    assert listed["failed"]["error"] == "no client trained"
    assert listed["finished"]["round"] == 1
    assert listed["finished"]["personalised"] == pytest.approx(0.038)
    assert (listed["stopped"]["round"], listed["stopped"]["personalised"]) == (0, None)
    add_round(finished, 2)
    assert next(run["round"] for run in list_runs(tmp_path) if run["name"] == "finished") == 2


def test_a_run_before_its_clients_are_found(tmp_path):
    folder = make_run(tmp_path, "one")
    (folder / "task.json").unlink()
    (folder / "metrics.jsonl").unlink()
    told = read_run(tmp_path, "one")
    assert (told["rounds"], told["since"], told["about"]["clients"]) == ([], "", None)
    add_round(folder, 1)
    assert "about" in read_run(tmp_path, "one", told["since"])


def test_a_loss_that_is_no_number_is_left_out(tmp_path):
    folder = make_run(tmp_path, "one")
    add_round(folder, 1, loss=float("nan"))
    assert read_run(tmp_path, "one")["loss"] == [None]


def test_clients_beyond_the_limit_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "MAX_CLIENTS", 2)
    folder = make_run(tmp_path, "one")
    add_round(folder, 1, failed={2: "away"})
    add_round(folder, 2)
    told = read_run(tmp_path, "one")
    assert (told["trained"], told["failed"], len(told["each"][1])) == ([[0, 1]] * 2, [], 2)
    assert (told["about"]["clients"], len(told["about"]["samples"])) == (3, 2)


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "one/", "/etc", "a\0b", "x" * 5000])
def test_other_folders_are_out_of_reach(tmp_path, name):
    root = tmp_path / "runs"
    for folder in (tmp_path, root):
        make_run(folder, "one")
        (folder / "config.toml").write_bytes((folder / "one" / "config.toml").read_bytes())
    with pytest.raises(ConfigError, match="there is no such run"):
        read_run(root, name)


def test_damaged_runs_are_named_and_the_others_listed(tmp_path):
    whole, damaged = make_run(tmp_path, "whole", rounds=1), make_run(tmp_path, "damaged", rounds=1)
    path = damaged / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6", 1))
    listed = {run["name"]: run for run in list_runs(tmp_path)}
    assert listed["damaged"]["state"] == "unreadable"
    assert str(path) in listed["damaged"]["error"]
    assert listed[whole.name]["round"] == 1
    with pytest.raises(DamagedFile):
        read_run(tmp_path, "damaged")


DEEP = "[" * 100_000
UNFIT = {
    "deep TOML": ("config.toml", f"a = {DEEP}"), "a date": ("config.toml", "a = 2026-11-26"),
    "NaN": ("config.toml", "seed = nan"), "a table as a text": ("config.toml", "[method]"),
    "no TOML": ("config.toml", "\0"), "too many settings": ("config.toml", "a = 1\n" * 200_000),
    "deep JSON": ("metrics.jsonl", f'{{"round": {DEEP}\n'),
    "a round that is a text": ("metrics.jsonl", '{"round": "1"}\n'),
    "a round beyond numbers": ("metrics.jsonl", '{"round": 1e999}\n'),
    "clients that are a number": ("metrics.jsonl", '{"round": 1, "clients": 7}\n'),
    "accuracies that are a list": ("metrics.jsonl", '{"round": 1, "clients": [], "personalised": [1]}\n'),
    "an accuracy that is a text": (
        "metrics.jsonl", '{"round": 1, "clients": [], "personalised": {"each": {"0": "1"}, "accuracy": "1"}}\n'
    ),
    "a client without a number": (
        "metrics.jsonl", '{"round": 1, "clients": [], "personalised": {"each": {"a": 1}, "accuracy": 1}}\n'
    ),
    "samples that are a number": ("task.json", '{"state_key": "a", "samples": 7}'),
    "a deep task": ("task.json", f'{{"state_key": {DEEP}'),
    "NaN in a task": ("task.json", '{"state_key": "a", "remarks": [NaN]}'),
    "remarks that are a text": ("task.json", '{"state_key": "a", "remarks": "x"}'),
}  # fmt: skip
FILES = ("config.toml", "metrics.jsonl", "task.json", "failed.txt", ".lock")


def put_in_place(path, kind):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path.name)


def test_a_run_that_cannot_be_told_hides_no_other(tmp_path, caplog):
    make_run(tmp_path, "whole", rounds=1)
    for what, (name, content) in UNFIT.items():
        (make_run(tmp_path, what, rounds=1) / name).write_text(content)
    kinds = [f"{name} {kind}" for name in FILES for kind in ("pipe", "folder", "device", "loop")]
    for what in kinds:
        folder = make_run(tmp_path, what, rounds=1)
        (folder / ".lock").touch()
        put_in_place(folder / what.partition(" ")[0], what.partition(" ")[2])
    make_run(tmp_path, os.fsdecode(b"r\xff"), rounds=1)
    with served(tmp_path) as page:
        where = page.address().partition("/#")[0]
        known = {"Authorization": f"Bearer {page.token}"}
        with httpx.Client(base_url=where, headers=known, timeout=HANG_SECONDS) as web:
            listed = {run["name"]: run for run in web.get("/api/runs").json()["runs"]}
            one = {name: web.get("/api/run", params={"name": name}) for name in ["whole", *UNFIT, *kinds]}
    assert listed["whole"]["round"] == 1
    assert listed["r?"]["state"] == "unreadable"
    for what, (name, content) in UNFIT.items():
        # The list reads settings and the last round's accuracy; what else is damaged shows in the run alone.
        if name == "config.toml" or 'accuracy": "' in content or "a round" in what or "deep JSON" in what:
            assert listed[what]["state"] == "unreadable", what
        assert one[what].status_code == 422, what
        assert len(one[what].json()["error"].splitlines()) == 1
    for what in kinds:
        assert one[what].status_code in (200, 404, 422), what
    assert one["whole"].status_code == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("since", ["9" * 5000, "-", "1-" + "9" * 5000, "٣-٣", "1-2-3", "-1--1", "\0"])
def test_a_place_that_no_answer_gave_is_the_beginning(tmp_path, since):
    make_run(tmp_path, "one", rounds=2)
    assert read_run(tmp_path, "one", since)["rounds"] == [1, 2]


def test_reading_changes_nothing_and_needs_no_torch(tmp_path):
    make_run(tmp_path, "one", rounds=2)

    def files():
        return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")}

    before = files()
    code = (
        "import sys; from pathlib import Path; from fedpfl.study.live import page_server; root = Path(sys.argv[1]);"
        "assert page_server.list_runs(root) and page_server.read_run(root, 'one')['rounds'] == [1, 2];"
        "assert not {'torch', 'flwr', 'paho'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=120)
    assert files() == before
