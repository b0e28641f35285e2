"""Analyses that test what runs left: masked parts, held-out clients, feature maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.results.new_clients import Simulation, try_new_clients
from fedpfl.study.analysis import ANALYSES, NotRecorded
from fedpfl.study.analysis.stored_models import fresh_arrays, overwrite, picture

# Beside the tables that need them.
masked_accuracies = ANALYSES["masking"].function.__globals__["masked_accuracies"]
parts = ANALYSES["masking"].function.__globals__["parts"]
contrast = ANALYSES["feature-maps"].function.__globals__["contrast"]
scaled = ANALYSES["feature-maps"].function.__globals__["scaled"]

ROUNDS = {"num_server_rounds": 2, "local_epochs": 2}
QUICK = {**FEW_SAMPLES, **ROUNDS}


def test_of_a_split_layer_every_parameter_is_in_one_part(tmp_path):
    left = Simulation.of(simulate(tmp_path, 3, method="fedfac", **QUICK))
    left.load(0)
    shared, personal = parts(left)
    assert set(shared) == set(personal) == {"base.conv2.weight", "base.conv2.bias"}
    split = torch.tensor(left.rule.state()["split"].astype(bool))
    assert torch.equal(shared["base.conv2.bias"], split)
    assert torch.equal(personal["base.conv2.bias"], ~split)


def test_fresh_arrays_replace_one_part_and_nothing_else(tmp_path):
    left = Simulation.of(simulate(tmp_path, 2, method="fedper", **QUICK))
    left.load(0)
    before = {name: array.clone() for name, array in left.engine.model.state_dict().items()}
    fresh = fresh_arrays(left, 5)
    _, personal = parts(left)
    overwrite(left, fresh, personal)
    for name, array in left.engine.model.state_dict().items():
        assert torch.equal(array, (fresh if name.startswith("head.") else before)[name])
        assert not torch.equal(fresh[name], before[name])
    start = fresh_arrays(left, left.engine.config.run.seed)
    assert torch.equal(start["head.weight"], torch.tensor(left.engine._now.first_personal["head.weight"]))


def test_masking_counts_right_labels_among_all_of_them(tmp_path):
    rng = np.random.default_rng(1)
    arrays = [(rng.normal(size=(20, 4)).astype(np.float32), rng.integers(2, size=(20, 3)).astype(np.float32))] * 2
    run = fedpfl.run(
        "fedper", data=arrays, loss="multi-label", model="mlp", num_server_rounds=1, output_dir=tmp_path,
        state_dir=tmp_path / "state", workers=0, quiet=True,
    )  # fmt: skip
    with run.objects():
        (row,) = ANALYSES["masking"].make([run._folder], draws=1).tables[0].rows
    assert row[1].mean == pytest.approx(100 * run._folder.metrics()[-1]["personalised"]["weighted"])


def test_masking_costs_accuracy_and_without_a_mask_the_run_s_own_is_found(tmp_path):
    runs = [simulate(tmp_path, 3, method=m, run_name=m, **ROUNDS) for m in ("fedfac", "fedper", "fedavg")]
    result = ANALYSES["masking"].make(runs, draws=2)
    assert [row[0] for row in result.tables[0].rows] == ["fedfac", "fedper"]  # fedavg has no personal part
    for run, row in zip(runs, result.tables[0].rows, strict=False):
        unmasked, shared, personal = (cell.mean for cell in row[1:])
        assert unmasked == pytest.approx(100 * run.metrics()[-1]["personalised"]["weighted"])
        assert len({unmasked, shared, personal}) == 3
    assert personal < unmasked  # a classifier of random values is a coin of ten sides
    assert masked_accuracies(runs[0], 1) == masked_accuracies(runs[0], 1)
    with pytest.raises(NotRecorded, match="a shared and a personal part"):
        ANALYSES["masking"].make(runs[2:])


def test_new_clients_are_those_of_the_command(tmp_path):
    runs = [simulate(tmp_path, 4, method=m, run_name=m, new_clients=0.25, **QUICK) for m in ("fedavg", "fedamp")]
    result = ANALYSES["new-clients"].make(runs)
    ((label, local, ensemble, tuned),) = result.tables[0].rows
    assert label == "fedavg"
    for cell, mode in ((local, "local-train"), (ensemble, "ensemble"), (tuned, "fine-tune")):
        assert cell.mean == 100 * try_new_clients(runs[0], mode)["weighted"]
    assert "fedamp" in result.tables[0].note
    assert result.figures[0].values["fine-tuned (+), %"] == [tuned.mean]


def test_without_clients_held_out_there_is_nothing_to_show(make_run, tested):
    with pytest.raises(NotRecorded, match=r"new-clients = 0.1"):
        ANALYSES["new-clients"].make([make_run("fedavg", [tested(0.5)])])


def test_feature_maps_are_what_a_layer_with_split_filters_puts_out(tmp_path):
    runs = [simulate(tmp_path, 2, method=m, run_name=m, **QUICK) for m in ("fedavg", "fedfac")]
    with pytest.raises(NotRecorded, match="none of the runs splits the channels of a convolution"):
        ANALYSES["feature-maps"].make(runs[:1])
    with pytest.raises(ConfigError, match="client = 2"):
        ANALYSES["feature-maps"].make(runs[1:], client=2)
    result = ANALYSES["feature-maps"].make(runs, client=1, images=1, filters=3)
    assert [figure.title for figure in result.figures] == [
        f"{m}: {kind} filters of base.conv2, client 1" for m in ("fedavg", "fedfac") for kind in ("shared", "personal")
    ]
    left = Simulation.of(runs[1])
    model = left.load(1).model.eval()
    image = left.engine.test_samples(1).x[:1]
    with torch.no_grad():
        maps = model.base.conv2(model.base.relu1(model.base.pool1(model.base.conv1(image))))[0].numpy()
    split = left.rule.state()["split"].astype(bool)
    (row,) = result.figures[2].rows.values()
    assert len(row) == 4
    np.testing.assert_allclose(row[0], (image[0, 0].numpy() + 1) / 2, atol=1e-6)
    np.testing.assert_allclose(row[1], scaled(maps[np.flatnonzero(split)[0]]), atol=1e-5)
    assert result.tables[0].rows[1][2] == pytest.approx(contrast(maps[None, ~split]), rel=1e-4)


def test_pictures_and_contrasts_of_a_small_case():
    assert picture(torch.tensor([[[-1.0, 1.0]]])).tolist() == [[0.0, 1.0]]
    assert picture(torch.zeros(3, 2, 2)).shape == (2, 2, 3)
    assert scaled(np.array([[2.0, 4.0]])).tolist() == [[0.0, 1.0]]
    assert scaled(np.ones((2, 2))).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert contrast(np.array([[[[1.0, 3.0]], [[2.0, 2.0]]]])) == pytest.approx((1 / 2 + 0) / 2)
    assert contrast(np.empty((1, 0, 2, 2))) is None


def test_confusion_matrices_have_the_recorded_accuracies(tmp_path):
    for name, settings in {"plain": {}, "permuted": {"permute_labels": True}, "adapted": {"tune_epochs": 1}}.items():
        run = simulate(tmp_path, 3, method="fedper", run_name=name, **QUICK, **settings)
        each, matrices = ANALYSES["confusion"].make([run]).tables
        names = list(each.columns[1:])
        recorded = run.metrics()[-1]["personalised"]
        for client, accuracy in recorded["each"].items():
            rows = {row[1]: row[2:] for row in matrices.rows if row[0] == int(client)}
            right = {name: row[names.index(name)] for name, row in rows.items()}
            assert sum(map(sum, rows.values())) == recorded["samples"][client]
            assert sum(right.values()) / recorded["samples"][client] == pytest.approx(accuracy)
            of_class = next(row for row in each.rows if row[0] == int(client))[1:]
            wanted = [100 * right[name] / sum(rows[name]) if name in rows else None for name in names]
            assert of_class == pytest.approx(wanted)
    with pytest.raises(NotRecorded, match="classes"):
        ANALYSES["confusion"].make([simulate(tmp_path, 2, run_name="targets", **targets(tmp_path), **ROUNDS)])


def targets(folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez(folder / "targets.npz", x=x, y=x.sum(1))
    return {"method": "fedavg", "dataset": "npz", "data": str(folder / "targets.npz"), "model": "mlp", "loss": "mse",
            "partitioner": "iid"}  # fmt: skip
