"""What a user's function is called with: what settings decide, its own defaults, and what a partial has fixed."""

from functools import partial

import numpy as np
import pytest
from torch import nn

from fedpfl.core.errors import ConfigError
from fedpfl.core.user_code import call
from fedpfl.data import DataSettings
from fedpfl.data.datasets.python_objects import CustomLoader
from fedpfl.models import build
from fedpfl.setup.objects import as_setting


def model(input_shape, num_classes, width=8, vocabulary=5):
    made = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], round(8 * width)))
    return made.append(nn.Linear(round(8 * width), num_classes)).append(nn.Identity()) if vocabulary == 5 else made


@pytest.mark.parametrize(
    ("function", "suffix", "units"),
    [(model, "", 64), (model, "@0.5", 4), (partial(model, width=3), "", 24), (partial(model, width=0.5), "", 4)],
)
def test_a_model_s_own_width_counts_unless_another_is_asked_for(function, suffix, units):
    with as_setting("model", function) as text:
        assert next(build(f"{text}{suffix}", (6,), 2).parameters()).shape == (units, 6)


def test_a_width_that_a_partial_has_fixed_cannot_be_another():
    with as_setting("model", partial(model, width=3)) as text, pytest.raises(ConfigError, match="no argument 'width'"):
        build(f"{text}@0.5", (6,), 2)


def test_a_data_set_s_own_path_counts_unless_the_setting_data_names_one():
    def read(path="own.csv", settings=None):
        return np.full((4, 1), len(path), np.float32), np.arange(4) % 2

    for source, data, letters in ((read, "", 7), (read, "a.csv", 5), (partial(read, path="my"), "a.csv", 2)):
        made = CustomLoader("data", source)(DataSettings(dataset="table", data=data, min_samples=2))
        assert made.x_train[0, 0] == letters


def test_an_argument_without_a_default_gets_what_there_is():
    assert call("dataset", "f", lambda path: path, {"path": ""}, ["path"]) == ""
    with pytest.raises(ConfigError, match="needs an argument 'place'; it is given path, by these names"):
        call("dataset", "f", lambda place: place, {"path": ""})
