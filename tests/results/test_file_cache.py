"""The end of a run's metrics: as all of them say it, whatever their length, and read from the end."""

from __future__ import annotations

import json
import random

import pytest

from fedpfl.core.checksummed_files import json_line
from fedpfl.core.errors import DamagedFile
from fedpfl.results import file_cache
from fedpfl.results.history import History


def of_round(number, tested, clients):
    each = {str(client): 0.5 for client in range(clients)}
    tests = {"personalised": {"accuracy": number / 100, "each": each}, "global": {"accuracy": number / 200}}
    return {"round": number, "clients": [], **{part: tests[part] for part in tested}}


@pytest.mark.parametrize("tail", [1, 100, 2**16])
@pytest.mark.parametrize("seed", range(8))
def test_the_latest_numbers_are_those_of_all_lines(tmp_path, monkeypatch, seed, tail):
    monkeypatch.setattr(file_cache, "TAIL", tail)
    rng = random.Random(seed)
    # Tests of these kinds, in every nth round; none yet.
    tested, every = rng.choice([("personalised", "global"), ("personalised",), ("global",)]), rng.choice([1, 3, 99])
    lines = [of_round(number, tested if number % every == 0 else (), rng.choice([1, 400])) for number in range(1, 12)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(json_line, lines)) + rng.choice(["", '{"sha256": "', json_line(lines[-1])[:-1]]))
    history = History(lines)
    assert file_cache.latest(path) == (11, history.last("personalised.accuracy"))
    read = [json.loads(line) for line in file_cache.last_lines(path)]
    assert [line["round"] for line in read] == [*range(11, 0, -1)]


def test_a_file_without_a_whole_line_has_no_round(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert file_cache.latest(path) == (0, None)
    for content in ("", '{"round": 1, "cli'):
        path.write_text(content)
        assert file_cache.latest(path) == (0, None)


def test_what_is_read_does_not_grow_with_the_rounds_and_a_line_has_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(2**36)  # takes no room on the disk, and would not fit the memory
        file.seek(0, 2)
        file.write(b"\n" + json_line(of_round(9, ("personalised",), 3)).encode())
    assert file_cache.latest(path) == (9, 0.09)
    monkeypatch.setattr(file_cache, "MAX_LINE", 2**18)
    with pytest.raises(DamagedFile, match="a line has more than 262144 bytes"):
        list(file_cache.last_lines(path))


def test_a_file_is_read_once_for_each_version_and_others_are_kept_while_they_fit(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(file_cache, "_kept", {})
    monkeypatch.setattr(file_cache, "KEPT_BYTES", 10)
    monkeypatch.setattr(file_cache, "FRESH", 0)
    read = []

    def lines(name, content=None):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)

        def reader(path):
            read.append(name)
            return path.read_text()

        return file_cache.kept(path, reader)

    assert [lines("a", "1234"), lines("a"), lines("b", "5678"), lines("a"), lines("b")] == [
        "1234", "1234", "5678", "1234", "5678"
    ]  # fmt: skip
    assert (lines("a", "12345"), lines("a")) == ("12345", "12345")
    assert read == ["a", "b", "a"]
    assert (lines("long", 20 * "x"), lines("long")) == (20 * "x", 20 * "x")
    assert read == ["a", "b", "a", "long"] and len(file_cache._kept) == 1, "the others made room for it"
    lines("a")
    assert read[4:] == ["a"]
    monkeypatch.setattr(file_cache, "FRESH", 10**18)
    assert [lines("a", "12345"), lines("a", "54321")] == ["12345", "54321"], "they may look the same"
