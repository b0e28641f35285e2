"""Weights in a run's folder start a run whose columns and classes mean the same."""

import shutil

import numpy as np
import pytest

import fedpfl
from fedpfl.core.errors import ConfigError

SMALL = {"model": "mlp", "num_server_rounds": 1, "local_epochs": 1, "quiet": True, "workers": 0}


def table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=40), "b": rng.normal(size=40), "client": np.arange(40) % 2})
    return frame.assign(label=np.where(frame.a > 0, "yes", "no"))


@pytest.mark.usefixtures("elsewhere")
def test_other_columns_or_classes_are_refused_unless_the_file_is_copied(tmp_path):
    first = {
        method: fedpfl.run(method, data=table(), **SMALL).path / "global.safetensors" for method in ("fedavg", "fedper")
    }
    numbers = table().assign(label=lambda frame: (frame.a > 0).astype(int))
    for method, data, wrong in (
        ("fedavg", table(), ""),
        ("fedavg", table().rename(columns={"a": "b", "b": "a"}), "columns"),
        ("fedavg", table()[["b", "a", "client", "label"]], "columns"),
        ("fedavg", numbers, "classes"),
        ("fedper", numbers, ""),
    ):
        start = {**SMALL, "data": data, "method": method}
        if wrong:
            with pytest.raises(ConfigError, match=f"initial-weights = .* its run had other {wrong}, or another order"):
                fedpfl.run(**start, initial_weights=str(first[method]))
        else:
            fedpfl.run(**start, initial_weights=str(first[method]))
    shutil.copy(first["fedavg"], tmp_path / "alone.safetensors")
    fedpfl.run("fedavg", data=numbers, initial_weights=str(tmp_path / "alone.safetensors"), **SMALL)


@pytest.mark.usefixtures("elsewhere")
def test_inputs_that_are_scaled_in_another_way_are_told(capsys):
    weights = str(fedpfl.run("fedavg", data=table(), **SMALL).path / "global.safetensors")
    said = "standardize = client: the run of initial-weights had none, so its weights expect other inputs"
    for standardize in ("none", "client"):
        run = fedpfl.run("fedavg", data=table(), standardize=standardize, initial_weights=weights, **SMALL)
        assert (said in capsys.readouterr().err) == (standardize == "client"), run
