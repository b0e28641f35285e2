"""Analyses of what methods measure themselves: by hand, and on small runs."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, simulate

from fedpfl import models
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis import ANALYSES, NotRecorded

# Beside the tables that need them.
mean_of_others = ANALYSES["similarity"].function.__globals__["mean_of_others"]
traffic = ANALYSES["communication"].function.__globals__["traffic"]

SMALL = {**FEW_SAMPLES, "num_server_rounds": 2, "local_epochs": 1}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model-difference", "diagnostics = true"),
        ("movement", "diagnostics = true"),
        ("unchanged-channels", "fedfac-variant"),
        ("similarity", "factorized-fl"),
        ("communication", "nothing was sent"),
    ],
)
def test_what_is_missing_is_said_with_what_records_it(make_run, tested, name, hint):
    lines = [] if name == "communication" else [tested(0.5)]
    with pytest.raises(NotRecorded, match=hint):
        ANALYSES[name].make([make_run("fedavg", lines)])


def test_distances_of_two_seeds(make_run):
    recorded = {1: [(4.0, 0.0, 0.0), (2.0, 1.0, 6.0)], 2: [(6.0, 0.0, 0.0), (4.0, 3.0, 10.0)]}
    names = ("drift", "shared-change", "personal-change")
    runs = [
        make_run("feddecomp", [{"details": dict(zip(names, values, strict=True))} for values in lines], seed=seed)
        for seed, lines in recorded.items()
    ]
    difference = ANALYSES["model-difference"].make([*runs, make_run("fedavg", [{}])])
    assert difference.figures[0].series == {"feddecomp": ([1, 2], [5.0, 3.0])}
    ((label, first, last, mean),) = difference.tables[0].rows
    assert (label, first, last, mean.mean, mean.n) == ("feddecomp", 5, 3, 4, 2)
    movement = ANALYSES["movement"].make(runs)
    ((_, shared, personal, ratio, accuracy),) = movement.tables[0].rows
    assert (shared.mean, personal.mean, ratio, accuracy) == (2, 8, 4, None)
    assert movement.figures[0].series["feddecomp, Δτ"] == ([1, 2], [0.0, 8.0])


def test_a_mean_is_over_the_rounds_that_all_seeds_have(make_run):
    """A seed that ended early would else make a jump in the curve."""
    runs = [
        make_run("feddecomp", [{"details": {"drift": drift}} for drift in drifts], seed=seed)
        for seed, drifts in ((1, (4.0, 2.0, 1.0)), (2, (6.0, 4.0)))
    ]
    assert ANALYSES["model-difference"].make(runs).figures[0].series == {"feddecomp": ([1, 2], [5.0, 3.0])}


def test_when_the_split_comes_to_rest(make_run):
    shares = [None, 1.0, 0.5, 1.0, 0.995]
    lines = [{"details": {"shared-channels": 0.5, **({} if s is None else {"unchanged-channels": s})}} for s in shares]
    runs = [make_run("fedfac", lines), make_run("fedfac", lines[:3], seed=2)]
    ((_, last, shared, at_rest),) = ANALYSES["unchanged-channels"].make(runs[:1]).tables[0].rows
    assert (last.mean, shared.mean, at_rest.mean) == (0.995, 0.5, 4)
    assert ANALYSES["unchanged-channels"].make(runs[1:]).tables[0].rows[0][3] is None
    both = ANALYSES["unchanged-channels"].make(runs).figures[0].series["fedfac"]
    assert both == ([2, 3], [1.0, 0.5])


def test_the_mean_similarity_of_others():
    values = np.array([[1.0, 0.5, np.nan], [0.5, 1.0, 0.1], [np.nan, 0.1, 1.0]])
    assert mean_of_others(values) == pytest.approx(0.3)
    assert mean_of_others(np.array([[1.0]])) is None


def test_similarity_of_a_run(tmp_path):
    run = simulate(tmp_path, 3, method="factorized-fl", factorized_fl_min_aggregate=2, **SMALL)
    result = ANALYSES["similarity"].make([run])
    titles = [figure.title for figure in result.figures]
    assert titles == [
        "factorized-fl: similarity, round 1",
        "factorized-fl: similarity, round 2",
        "factorized-fl: similarity of what is shared, round 2",
        "factorized-fl: matches in 2 rounds",
    ]
    for figure in result.figures[:3]:
        np.testing.assert_allclose(np.diag(figure.values), 1)
    assert (np.diag(result.figures[3].values) == 2).all()  # each client is always matched with itself
    stored = np.load(run.path / "arrays" / "similarity" / "round-000002.npy")
    assert result.tables[0].rows[0][2] == pytest.approx(mean_of_others(stored))


def test_similarity_is_shown_in_five_rounds_from_the_first_to_the_last(tmp_path):
    run = simulate(tmp_path, 2, method="factorized-fl", **SMALL)
    folder = run.path / "arrays" / "similarity"
    for number in range(3, 12):
        np.save(folder / f"round-{number:06d}.npy", np.full((2, 2), number / 100))
    titles = [figure.title for figure in ANALYSES["similarity"].make([run]).figures]
    shown = [title.rsplit(" ", 1)[1] for title in titles if ": similarity, round" in title]
    assert shown == ["1", "3", "6", "9", "11"]


def values_of(run):
    """Return the number of float values of the run's plain model."""
    task, config = run.task(), run.config()
    return sum(
        p.numel() for p in models.build(config["model"], tuple(task["input_shape"]), task["num_classes"]).parameters()
    )


@pytest.mark.parametrize(("wire", "width"), [("float32", 4), ("float16", 2)])
def test_bytes_of_fedavg_are_those_of_its_model(tmp_path, wire, width):
    run = simulate(tmp_path, 4, method="fedavg", wire_dtype=wire, new_clients=0.25, **SMALL)
    size, t = values_of(run), traffic(run)
    assert t.values == t.model == size
    assert t.up_theory == 2 * 3 * size * width  # 2 rounds, 3 of 4 clients train
    assert t.down_theory == 2 * t.up_theory  # and all 3 are tested after each
    assert t.up_theory < t.up < 1.2 * t.up_theory
    assert t.whole == 18 * size * 4
    result = ANALYSES["communication"].make([run])
    assert result.tables[0].rows[0][7] == pytest.approx(100 * width / 4, rel=0.2)
    xs, ys = result.figures[0].series["fedavg"]
    assert xs[-1] == pytest.approx((t.up + t.down) / 1e6)
    assert ys[-1] == pytest.approx(100 * run.metrics()[-1]["personalised"]["accuracy"])
    bubbles = result.figures[1]
    assert bubbles.series["fedavg"][0] == [size / 1e3]
    assert bubbles.sizes["fedavg"] == [xs[-1]]


def test_a_model_s_size_is_what_the_method_counts(tmp_path):
    run = simulate(tmp_path, 2, method="factorized-fl", **SMALL)
    bubbles = ANALYSES["communication"].make([run]).figures[1]
    assert bubbles.series["factorized-fl"][0] == [run.metrics()[-1]["details"]["parameters"] / 1e3]


@pytest.mark.parametrize("method", ["fedsplit", "fedfac"])
def test_channels_that_stay_are_not_counted(tmp_path, method):
    settings = {"fedfac_variant": "static"} if method == "fedfac" else {}
    run = simulate(tmp_path, 2, method=method, **settings, **SMALL)
    t, size = traffic(run), values_of(run)
    assert t.values < size
    first = size if method == "fedfac" else t.values  # the static split is made after round 1
    assert t.up_theory == 2 * (first + t.values) * 4
    assert t.down_theory == 2 * (first + t.values + 2 * t.values) * 4
    assert 1 < t.up / t.up_theory < 1.2


def test_a_damaged_array_is_one_line(tmp_path, make_run):
    from fedpfl.core.errors import StateError
    from fedpfl.study.analysis.repetitions import array

    run = RunFolder(make_run("fedavg", []).path)
    (run.path / "arrays" / "similarity").mkdir(parents=True)
    (run.path / "arrays" / "similarity" / "round-000001.npy").write_bytes(b"nonsense")
    with pytest.raises(StateError, match=r"round-000001.npy: is damaged .*magic string"):
        array(run, "similarity")
