"""Which runs have the same clients: those with the same samples of the same data."""

import pytest

from fedpfl.results.identity import clients_key
from fedpfl.setup.config import Config
from fedpfl.study.analysis import ANALYSES

TASK = {"division": 5, "clients": 4, "samples": [[3, 1]] * 4}


def key(task=None, **settings):
    options = {name.replace("_", "-"): value for name, value in settings.items()}
    return clients_key({**TASK, **(task or {})}, Config.parse({"method": "fedavg", **options}).flat())


def test_what_trains_on_them_does_not_make_clients():
    assert key() == key(method="ditto", model="mlp", local_epochs=3, validation_fraction=0.1) == key(seed=2)
    natural = {"partitioner": "natural", "data": "people.csv", "dataset": "table"}
    assert key(**natural) == key({"division": 6}, **natural, seed=2), "owners in the data are the same with each seed"
    assert key({"data": "a1"}, **natural) == key({"data": "a1"}, **{**natural, "data": "copy.csv"})


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ({"division": 6}, {"seed": 2}), ({"division": 6}, {"dirichlet_alpha": 0.5}), ({}, {"dataset": "cifar10"}),
        ({}, {"permute_labels": True}), ({"data": "b2"}, {}), ({"division": None, "samples": [[4, 1]] * 4}, {}),
    ],
)  # fmt: skip
def test_other_divisions_and_other_data_are_other_clients(task, settings):
    assert key(task, **settings) != key()


@pytest.mark.parametrize("name", sorted(name for name, analysis in ANALYSES.items() if not analysis.computes))
def test_no_analysis_pairs_clients_of_other_divisions(name, tmp_path):
    """Swapping who is who in one of the runs changes no number of an analysis."""
    from fedpfl.core.checksummed_files import json_line, to_toml
    from fedpfl.core.errors import FedpflError
    from fedpfl.results.run_folder import RunFolder

    def told(each):
        runs = []
        for method, division, accuracies in (("fedavg", 5, (0.5, 0.6, 0.7, 0.9)), ("ditto", 6, each)):
            path = tmp_path / f"{method}-{each[0]}"
            path.mkdir()
            (path / "config.toml").write_text(to_toml(Config.parse({"method": method, "seed": division}).flat()))
            task = {**TASK, "division": division, "state_key": method, "input_shape": [1, 8, 8], "num_classes": 10}
            (path / "task.json").write_text(json_line(task))
            tested = {"each": {str(number): accuracy for number, accuracy in enumerate(accuracies)}, "weighted": 0.5}
            line = {"round": 1, "personalised": tested, "clients": [0, 1, 2, 3], "bytes_up": 0, "bytes_down": 0}
            (path / "metrics.jsonl").write_text(json_line({**line, "seconds_train": 1.0}))
            runs.append(RunFolder(path))
        try:
            tables = ANALYSES.find(name).make(runs).tables
        except FedpflError as error:
            return str(error).replace(str(tmp_path), "")
        alone = [table.write("csv") for table in tables if "client" not in table.columns]
        both = [table for table in tables if "client" in table.columns and len(table.columns) > 2]
        return [text.replace(f"-{each[0]}", "") for text in alone], both

    assert told((0.1, 0.2, 0.3, 0.4)) == told((0.4, 0.3, 0.2, 0.1))
