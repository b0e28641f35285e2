"""Clients that are missing are told with the names of their boards."""

from __future__ import annotations

import json

import pytest
from live_parts import make_run

from fedpfl.core.checksummed_files import json_line
from fedpfl.core.errors import ConfigError
from fedpfl.results.board_names import VARIABLE, board_names, with_boards
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.summary import outcome_rows


def test_without_a_file_there_are_only_numbers(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert board_names() == {} and with_boards([10, 9], {}) == "9, 10"


def test_clients_of_one_board_stand_together(monkeypatch, tmp_path):
    (tmp_path / "boards.json").write_text(json.dumps({"nano-2": [3, 4], "nano\x1b-4": [9, 10]}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "boards.json"))
    assert with_boards([30, 10, 9, 3], board_names()) == "3 (nano-2), 9, 10 (nano -4), 30"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 3}', '{"a": ["0"]}', '{"a": [true]}', "[" * 10_000])
def test_a_file_that_is_none_is_one_line(monkeypatch, tmp_path, text):
    (tmp_path / "boards.json").write_text(text)
    for path in (tmp_path / "boards.json", tmp_path / "none.json"):
        monkeypatch.setenv(VARIABLE, str(path))
        with pytest.raises(ConfigError, match=f"^{VARIABLE} = ") as error:
            board_names()
        assert "\n" not in str(error.value)


def test_a_summary_names_whose_tests_and_models_are_missing(tmp_path):
    folder = make_run(tmp_path, "run", clients=12, rounds=1, about={"boards": {"nano-4": [9, 10, 11]}})
    metrics = folder / "metrics.jsonl"
    line = json.loads(metrics.read_text())
    tested = {client: score for client, score in line["personalised"]["each"].items() if client not in ("9", "10")}
    line["personalised"]["each"] = tested
    metrics.write_text(json_line({**line, "untested": [9, 10], "unwritten": {"11": "No space left on device"}}))
    rows = {what: value for what, value, _ in outcome_rows(RunFolder(folder))}
    missing = "1, first round 1 with 10 of 12 clients, without 9, 10 (nano-4); a best round is one of those that miss"
    assert rows["rounds in which tests are missing"].startswith(missing)
    assert rows["device models that could not be written"] == "1: client 11 (nano-4): No space left on device"
