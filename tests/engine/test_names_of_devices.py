"""Devices with tables or pictures of their own: columns and classes of other names or order are left out by name."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from support import LocalGrid, federation, run_federation

from fedpfl.core.errors import FedpflError
from fedpfl.core.name_lists import MAX_SENT, difference, digest, in_short, other_than, sent
from fedpfl.results.resumed_run import ResumedRun


def tables(folder, *columns):
    """Write a table for each device, with the values of a column the same in each."""
    rng = np.random.default_rng(0)
    nodes = {}
    for number, names in enumerate(columns):
        rows = [[f"{i % 2}" if name == "label" else f"{rng.normal():.3f}" for name in names] for i in range(40)]
        path = folder / f"{number}.csv"
        path.write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
        nodes[number] = {"data-path": str(path)}
    return nodes


def labelled(folder, *classes):
    """Write arrays for each device, with names of two classes."""
    x, nodes = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), {}
    for number, names in enumerate(classes):
        np.savez(folder / f"{number}.npz", x=x, y=np.arange(40) % 2, **({"classes": names} if names else {}))
        nodes[number] = {"data-path": str(folder / f"{number}.npz")}
    return nodes


def run(folder, nodes, place="run", **settings):
    defaults = {"method": "fedavg", "model": "mlp", "num_server_rounds": 1, "local_epochs": 1, "num_classes": 2}
    values = federation(folder / place, len(nodes), **{**defaults, **settings})
    return run_federation(LocalGrid(len(nodes), values, node_config=nodes), values)


FIRST = ["age", "bp", "label"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["bp", "age", "label"], "its columns are not most others'; their order is bp, age, that of most age, bp"),
        (["age", "weight", "label"], "its columns are not most others'; missing: bp; extra: weight"),
        (["age", "BP", "label"], "its columns are not most others'; missing: bp; extra: BP"),
    ],
)
def test_a_device_with_other_columns_is_left_out(tmp_path, caplog, other, message):
    folder = run(tmp_path, tables(tmp_path, FIRST, FIRST, other))
    assert folder.metrics()[0]["clients"] == [0, 1]
    assert f"client 2 cannot take part: {message}" in caplog.text
    assert folder.task()["names"]["columns"] == sent(["age", "bp"])


def test_the_place_of_the_label_does_not_matter(tmp_path):
    folder = run(tmp_path, tables(tmp_path, FIRST, ["label", "age", "bp"], ["age", "label", "bp"]))
    assert folder.metrics()[0]["clients"] == [0, 1, 2]


def test_a_device_without_names_is_left_out_and_two_that_differ_end_the_run(tmp_path, caplog):
    nodes = tables(tmp_path, FIRST, FIRST)
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    np.savez(tmp_path / "2.npz", x=x, y=np.arange(40) % 2)
    run(tmp_path, {**nodes, 2: {"data-path": str(tmp_path / "2.npz")}})
    assert "client 2 cannot take part: its columns are not most others'; they have no names" in caplog.text
    with pytest.raises(FedpflError, match="client 1: its columns are not most others'; missing: bp; extra: c"):
        run(tmp_path, tables(tmp_path, FIRST, ["age", "c", "label"]), "other")


def test_many_columns_travel_as_a_hash(tmp_path, caplog):
    names = [f"gene{i}" for i in range(MAX_SENT + 1)]
    many = [*names, "label"]
    run(tmp_path, tables(tmp_path, many, many, [*names[::-1], "label"]))
    assert "client 2 cannot take part: its columns are not most others'; there are too many to tell them" in caplog.text


@pytest.mark.parametrize("other", [["dog", "cat"], ["cat", "fox"], []])
def test_classes_of_other_names_are_left_out_where_the_classifier_is_shared(tmp_path, caplog, other):
    nodes = labelled(tmp_path, ["cat", "dog"], ["cat", "dog"], other)
    assert run(tmp_path, nodes).metrics()[0]["clients"] == [0, 1]
    assert "client 2 cannot take part: its classes have other names, or another order" in caplog.text
    alone = run(tmp_path, nodes, "alone", method="fedper")
    assert alone.metrics()[0]["clients"] == [0, 1, 2] and "classes" not in alone.task().get("names", {})


def test_names_are_told_in_a_bounded_text():
    assert sent([]) == "" and sent(["a", "b"]) == f"{digest(['a', 'b'])} a, b"
    assert sent(["x" * 3000]) == digest(["x" * 3000]) and len(sent(["é\n" * 500] * 2)) < 2020
    assert sent(["a, b"]) != sent(["a", "b"]), "the hash tells what the text does not"
    assert difference(["a"], ["a"]) == "" and difference(["a", "c"], ["a", "b"]) == "missing: b; extra: c"
    assert in_short([str(i) for i in range(20)]).endswith("11, … (20 in all)")
    for text in ("0" * 16, "nonsense", "", "0" * 16 + " " + ", " * 900):
        assert "\n" not in other_than(text, sent(["a", "b"])) and other_than(text, sent(["a", "b"]))


def test_a_device_whose_own_samples_have_changed_is_named_when_a_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalGrid, "devices", True)
    nodes = tables(tmp_path, FIRST, FIRST)
    folder = run(tmp_path, nodes)
    hashes = folder.task()["data_of_clients"]
    assert "data" not in folder.task() and len(set(hashes.values())) == 2
    assert any("clients have separate data" in remark for remark in folder.task()["remarks"])
    more = {"resume": True, "run_name": folder.path.name, "num_server_rounds": 2}
    assert len(run(tmp_path, nodes, **more).metrics()) == 2
    # A new card with the same samples: their hash is another one, with the secret of the new node.
    shutil.rmtree(tmp_path / "run" / "state" / folder.task()["state_key"] / "client-00001")
    ResumedRun(folder.path).let_in([1])
    more["num_server_rounds"] = 3
    again = run(tmp_path, nodes, **more)
    assert again.metrics()[-1]["clients"] == [0, 1]
    now = again.task()["data_of_clients"]
    assert now["0"] == hashes["0"] and now["1"] != hashes["1"]
    path = tmp_path / "1.csv"
    path.write_text(path.read_text().replace("\n0.", "\n9.", 1))
    with pytest.raises(FedpflError, match="the samples of clients 1 are not those of the run to resume"):
        run(tmp_path, nodes, **{**more, "num_server_rounds": 4})
    other = run(tmp_path, nodes, run_name="other")
    assert other.task()["data_of_clients"].items().isdisjoint(hashes.items()), "a server cannot compare with a guess"
