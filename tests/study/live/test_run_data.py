"""What the live page is told of runs."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
from live_parts import add_round, make_run, served
from waiting import HANG_SECONDS

from fedpfl.core.checksummed_files import json_line
from fedpfl.core.errors import ConfigError, DamagedFile
from fedpfl.core.files import locked
from fedpfl.study.live import run_data
from fedpfl.study.live.run_data import Pages, _BuiltPage, list_runs


def section(document, title):
    return next(section for section in document["sections"] if section["title"] == title)


def test_a_run_is_told_and_then_what_is_new(tmp_path):
    folder, pages = make_run(tmp_path, "one", rounds=2), Pages(tmp_path)
    with locked(folder / ".lock"):
        first = pages.tell(["one"], "")
        (run,) = first["document"]["runs"]
        assert run == {"name": "one", "state": "running", "round": 2, "rounds": 5, "seconds": 1.5, "left": 2.25}
        assert section(first["document"], "Overview")["notes"] == ["one: nothing is personal"]
        (rounds,) = section(first["document"], "Rounds")["tables"]
        assert rounds["rows"][0] == ["2", "4.50", "1.40", "50.00", "0.500", "3.00", "0.75", "3", "0"]
        (samples,) = section(first["document"], "Data")["tables"]
        assert samples["rows"][1] == ["1", "20", "4", "2", "0: 19, 1: 1"]
        assert pages.tell(["one"], first["version"]) == {"version": first["version"]}
        add_round(folder, 3, failed={1: "out of memory"})
        pages.is_last = True  # else it waits before it draws again
        new = pages.tell(["one"], first["version"])
        assert new["document"]["runs"][0]["round"] == 3
        assert section(new["document"], "Overview")["tables"][1]["rows"] == [["one", "3", "1", "out of memory"]]
    assert "Fairness" not in {part["title"] for part in first["document"]["sections"]}, "analyses wait for the end"


def test_a_page_takes_a_small_part_of_the_time(tmp_path, monkeypatch):
    folder, pages, made = make_run(tmp_path, "one", rounds=1), Pages(tmp_path), []
    monkeypatch.setattr(
        run_data, "_made", lambda version, *_: made.append(version) or _BuiltPage(version, {}, 1e9, 2.0)
    )
    clock = iter([0.0, 1e9 + 7.9, 1e9 + 8.1])
    monkeypatch.setattr(run_data, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    versions = []
    for number in (2, 3, 4):
        versions.append(pages.tell(["one"], "")["version"])
        add_round(folder, number)
    assert versions == [made[0], made[0], made[1]] and len(made) == 2


def test_classes_have_names_where_all_clients_number_them_alike(tmp_path):
    named = {"about": {"class_names": ["cat", "dog"]}}
    make_run(tmp_path, "one", **named)
    make_run(tmp_path, "permuted", permute_labels=True, **named)
    for name, cell in (("one", "cat: 10"), ("permuted", "0: 10")):
        told = Pages(tmp_path).tell([name], "")["document"]
        assert section(told, "Data")["tables"][0]["rows"][0][-1] == cell


def test_seeds_of_one_method_are_shown_together_and_other_runs_beside_them(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path, f"seed-{seed}", rounds=2, seed=seed)
    make_run(tmp_path, "other", rounds=2, method="local")
    told = Pages(tmp_path).tell(["seed-1", "seed-2", "other"], "")["document"]
    assert [row[:2] for row in section(told, "Overview")["tables"][0]["rows"]] == [["fedavg", "1, 2"], ["local", "1"]]


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
    (folder / "task.json").write_text(json_line({"state_key": "one"}))
    (folder / "metrics.jsonl").unlink()
    told = Pages(tmp_path).tell(["one"], "")["document"]
    assert told["runs"][0]["round"] == 0 and [part["title"] for part in told["sections"]] == ["Overview"]


def test_a_loss_that_is_no_number_breaks_nothing(tmp_path):
    folder = make_run(tmp_path, "one")
    add_round(folder, 1, loss=float("nan"))
    assert Pages(tmp_path).tell(["one"], "")["document"]


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "one/", "/etc", "a\0b", "x" * 5000])
def test_other_folders_are_out_of_reach(tmp_path, name):
    root = tmp_path / "runs"
    for folder in (tmp_path, root):
        make_run(folder, "one")
        (folder / "config.toml").write_bytes((folder / "one" / "config.toml").read_bytes())
    with pytest.raises(ConfigError, match="there is no such run"):
        Pages(root).tell([name], "")


def test_damaged_runs_are_named_and_the_others_listed(tmp_path):
    whole, damaged = make_run(tmp_path, "whole", rounds=1), make_run(tmp_path, "damaged", rounds=1)
    path = damaged / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6", 1))
    listed = {run["name"]: run for run in list_runs(tmp_path)}
    assert listed["damaged"]["state"] == "unreadable"
    assert str(path) in listed["damaged"]["error"]
    assert listed[whole.name]["round"] == 1
    with pytest.raises(DamagedFile):
        Pages(tmp_path).tell(["damaged"], "")


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
    "samples that are a number": ("task.json", '{"state_key": "a", "clients": 1, "samples": 7}'),
    "a deep task": ("task.json", f'{{"state_key": {DEEP}'),
    "remarks that are a number": ("task.json", '{"state_key": "a", "remarks": 7}'),
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
        headers = {"Authorization": f"Bearer {page.token}"}
        with httpx.Client(base_url=where, headers=headers, timeout=HANG_SECONDS) as web:
            listed = {run["name"]: run for run in web.get("/api/runs").json()["runs"]}
            one = {name: web.get("/api/page", params={"run": name}) for name in ["whole", *UNFIT, *kinds]}
    assert listed["whole"]["round"] == 1
    assert listed["r?"]["state"] == "unreadable"
    for what, (name, content) in UNFIT.items():
        # The list reads settings and the last round's accuracy; what else is damaged shows in the run alone.
        if name == "config.toml" or 'accuracy": "' in content or "a round beyond" in what or "deep JSON" in what:
            assert listed[what]["state"] == "unreadable", what
        assert one[what].status_code == 422, what
        assert len(one[what].json()["error"].splitlines()) == 1
    for what in kinds:
        assert one[what].status_code in (200, 404, 422), what
    assert one["whole"].status_code == 200
    assert "Traceback" not in caplog.text


def test_reading_changes_nothing_and_a_run_that_goes_on_needs_no_torch(tmp_path):
    folder = make_run(tmp_path, "one", rounds=2)
    (folder / ".lock").touch()

    def files():
        return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")}

    before = files()
    code = (
        "import sys; from pathlib import Path; from fedpfl.study.live import page_server; root = Path(sys.argv[1]);"
        "assert page_server.list_runs(root) and page_server.Pages(root).tell(['one'], '')['document']['sections'];"
        "assert not {'torch', 'flwr', 'paho'} & {*sys.modules}"
    )
    with locked(folder / ".lock"):
        subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=120)
    assert files() == before
