"""A model of a user's own under every method, or a reason why not before round 1."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import fedpfl
from fedpfl.methods import methods


class Net(nn.Module):
    """Fifteen lines that know nothing of fedpfl."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(4 * (height // 2) * (width // 2), 16)
        self.out = nn.Linear(16, num_classes)

    def forward(self, x):
        x = self.pool(self.norm(self.conv(x)).relu())
        return self.out(self.hidden(x.flatten(1)).relu())


# What only some models have.
REFUSED: dict[str, str] = {}


@pytest.mark.parametrize("method", list(methods()))
def test_a_model_of_fifteen_lines_runs(method, tmp_path):
    quick = {key.replace("-", "_"): value for key, value in methods()[method].quick.items()}
    settings = {
        "num_server_rounds": 1, "local_epochs": 2, "batch_size": 32, "num_clients": 2, "train_samples": 64,
        "partitioner": "dirichlet-client", "test_samples": 16, "validation_fraction": 0.2, "quiet": True, "workers": 0,
        "output_dir": tmp_path / "runs", "state_dir": tmp_path / "state", "num_classes": 0,
    }  # fmt: skip
    if method in REFUSED:
        with pytest.raises(fedpfl.FedpflError, match=REFUSED[method]):
            fedpfl.run(method=method, model=Net, **{**settings, **quick})
        assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
        return
    run = fedpfl.run(method=method, model=Net, **{**settings, **quick})
    assert run.summary["rounds"] == 1 and np.isfinite(run.summary["personalised_accuracy"])
    # Only a model that is one can be given back.
    try:
        model = run.model(client=0)
    except fedpfl.FedpflError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(model, Net) and model.out.out_features == 10
