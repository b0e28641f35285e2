"""A validation part of the user's own, in every form in which it is handed over; cuts by class and by time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpfl
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import FederatedData
from fedpfl.data.datasets.client_files import own_data
from fedpfl.data.federation import default_clients
from fedpfl.data.partitioners import cut_share, cut_validation, overlap_of
from fedpfl.data.settings import DataSettings
from fedpfl.setup.objects import as_setting

N = {"train": 60, "val": 20, "test": 30}


def arrays(start=0.0):
    """Return x and y of each part; the first feature numbers all samples, the second is the label."""
    parts, first = {}, start
    for part, n in N.items():
        x = np.stack([first + np.arange(n), np.arange(n) % 2], 1).astype(np.float32)
        parts[part], first = (x, x[:, 1].astype(np.int64)), first + n
    return parts


def frames(pandas):
    return {part: pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y}) for part, (x, y) in arrays().items()}


def datasets(pandas):
    import datasets as hf

    return {part: hf.Dataset.from_pandas(frame) for part, frame in frames(pandas).items()}


def torch_sets(pandas):
    import torch
    from torch.utils.data import TensorDataset

    return {part: TensorDataset(torch.tensor(x), torch.tensor(y)) for part, (x, y) in arrays().items()}


def npz(folder, pandas):
    np.savez(
        folder / "a.npz",
        **{f"{letter}_{part}": of for part, both in arrays().items() for letter, of in zip("xy", both, strict=True)},
    )
    return {"dataset": "npz", "data": str(folder / "a.npz")}


def tables(folder, pandas):
    for part, frame in frames(pandas).items():
        frame.to_csv(folder / f"{'valid' if part == 'val' else part}.csv", index=False)
    return {"dataset": "table", "data": str(folder)}


def split_column(folder, pandas):
    whole = pandas.concat([frame.assign(split=part) for part, frame in frames(pandas).items()])
    whole.sample(frac=1, random_state=1).to_csv(folder / "a.csv", index=False)
    return {"dataset": "table", "data": str(folder / "a.csv")}


def saved(folder, pandas):
    import datasets as hf

    hf.DatasetDict(datasets(pandas)).save_to_disk(folder / "a")
    return {"dataset": "huggingface", "data": str(folder / "a")}


def of_settings(options, clients=2, **more):
    return FederatedData(DataSettings(**{"partitioner": "iid", "min_samples": 2, **options, **more}), clients, 1)


def check(data, numbered=True):
    held = [data.validation(i).x[:, 0].numpy() for i in range(data.num_clients)]
    train = [data.train(i).x[:, 0].numpy() for i in range(data.num_clients)]
    test = [data.test(i).x[:, 0].numpy() for i in range(data.num_clients)]
    for parts, part, first in ((train, "train", 0), (held, "val", 60), (test, "test", 80)):
        assert all(len(mine) for mine in parts)
        assert sorted(np.concatenate(parts).tolist()) == list(range(first, first + N[part])), part


@pytest.mark.parametrize("write", [npz, tables, split_column, saved])
def test_of_files(tmp_path, write):
    pandas = pytest.importorskip("pandas")
    if write is saved:
        pytest.importorskip("datasets")
    check(of_settings(write(tmp_path, pandas)))
    # `validation-fraction` moves no sample from one part to another, and a split that would is refused.
    check(of_settings(write(tmp_path, pandas), validation_fraction=0.5))
    for split in ("mixed", "stratified"):
        with pytest.raises(ConfigError, match=r'must be "given" for [\w-]+, which has a validation part'):
            of_settings(write(tmp_path, pandas), split=split)


@pytest.mark.parametrize("make", [lambda pandas: arrays(), frames, torch_sets, datasets])
@pytest.mark.parametrize("word", ["val", "Validation"])
def test_of_python_objects(make, word):
    pandas = pytest.importorskip("pandas")
    if make is datasets:
        pytest.importorskip("datasets")
    made = make(pandas)
    made[word] = made.pop("val")
    check(loaded(made))
    several = loaded([made, made])
    assert [len(several.validation(i).y) for i in (0, 1)] == [20, 20]
    assert [several.sizes(i) for i in (0, 1)] == [(60, 30)] * 2


def loaded(source):

    with as_setting("dataset", source) as text:
        clients = 2
        return of_settings(
            {"dataset": text}, clients, **({"partitioner": "natural"} if isinstance(source, list) else {})
        )


def test_of_image_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part, n in {"train": 8, "valid": 4, "test": 6}.items():
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(n):
                image.new("L", (4, 4), i).save(tmp_path / part / kind / f"{i}.png")
    data = of_settings({"dataset": "image-folder", "data": str(tmp_path)})
    assert sum(len(data.train(i).y) for i in (0, 1)) == 16
    assert sum(len(data.validation(i).y) for i in (0, 1)) == 8
    assert sum(len(data.test(i).y) for i in (0, 1)) == 12


def test_a_run_is_chosen_and_stopped_by_it(tmp_path):
    x, y = arrays()["train"]
    parts = {"train": (x, y), "val": (x[:20], y[:20]), "test": (x[:30], y[:30])}
    few = {"num_clients": 2, "partitioner": "iid", "num_server_rounds": 1, "model": "mlp", "standardize": "client"}
    run = fedpfl.run(method="fedavg", data=parts, quiet=True, workers=0, output_dir=str(tmp_path), **few)
    assert run.rounds["validation_accuracy"].notna().all()
    assert run._folder.task()["samples"] == [[30, 15], [30, 15]]


def test_what_is_missing_is_said(tmp_path):
    (x, y), (x_val, y_val), (x_test, y_test) = arrays().values()
    with pytest.raises(DataError, match="only one names the owners"):
        np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, x_val=x_val, y_val=y_val,
                 client_train=y, client_test=y_test)  # fmt: skip
        of_settings({"dataset": "npz", "data": str(tmp_path / "a.npz")})
    with pytest.raises(DataError, match="client 1 has no validation set, and others have one"):
        loaded([arrays(), {"train": (x, y), "test": (x_test, y_test)}])
    (tmp_path / "b.csv").write_text("a,label,split\n" + "1,0,train\n1,1,valid\n" * 20)
    with pytest.raises(DataError, match="rows for validation and none for tests"):
        of_settings({"dataset": "table", "data": str(tmp_path / "b.csv")})


def test_natural_owners_keep_their_validation_samples(handed_over):
    (x, y), (x_val, y_val), (x_test, y_test) = arrays().values()
    both = [np.concatenate([x, x_val]), np.concatenate([y, y_val])]
    mask = np.arange(80) >= 60
    owner = np.arange(80) % 2
    made = fedpfl.Dataset.of("mine", *both, x_test, y_test, owner, np.arange(30) % 2, validation=mask)
    data = FederatedData(DataSettings(**handed_over(made), min_samples=2), 2, 1)
    for i in (0, 1):
        assert data.validation(i).x[:, 0].tolist() == [60 + i + 2 * k for k in range(10)]


# -- cuts --------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=4, max_size=60), share=st.floats(0.1, 0.6), seed=st.integers(0, 9))
def test_a_stratified_cut_has_each_class_s_share(labels, share, seed):
    y, positions = np.array(labels), np.arange(100, 100 + len(labels))
    chosen = DataSettings(split="stratified", test_fraction=share, validation_fraction=share)
    for train, test in (cut_share(positions, chosen, seed, 0, y), cut_validation(positions, chosen, seed, 0, y)):
        assert sorted([*train, *test]) == positions.tolist() and len(train) and len(test)
        for label in set(labels):
            expected = len(test) / len(y) * (y == label).sum()
            assert abs((y[test - 100] == label).sum() - expected) < 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(n=st.integers(8, 60), length=st.integers(2, 6), step=st.integers(1, 6), share=st.floats(0.1, 0.6))
def test_a_cut_by_time_shares_no_row_and_tests_the_future(n, length, step, share):
    chosen = DataSettings(split="time", test_fraction=share)
    overlap = overlap_of(length, step)
    before = n - min(max(int(n * share + 0.5), 1), n - 1)
    if length > before * step:  # the first window shares rows with the first one of the tests
        message = rf"client 3 has {n} samples, of which the last {n - before} are cut off for test and all"
        with pytest.raises(DataError, match=message):
            cut_share(np.arange(n), chosen, 0, 3, overlap=overlap)
        return
    train, test = cut_share(np.arange(n), chosen, 0, overlap=overlap)
    assert test.tolist() == list(range(before, n)) and train.tolist() == list(range(len(train)))
    assert len(train) and train[-1] * step + length <= test[0] * step
    assert len(test) + len(train) + overlap == n


@pytest.mark.parametrize("share", ["test_fraction", "validation_fraction"])
def test_no_window_is_trained_on_that_overlaps_with_those_set_aside(share):
    chosen = DataSettings(split="time", window_step=1, **{share: 0.25})
    cut = cut_share if share == "test_fraction" else cut_validation
    smaller = "" if share == "test_fraction" else "a smaller validation-fraction, "
    with pytest.raises(
        DataError, match=rf"client 0 .* overlap with these: use {smaller}a larger window-step \(now 1\)"
    ):
        cut(np.arange(100), chosen, 0, 0, overlap=127)
    train, kept = cut(np.arange(172), chosen, 0, 0, overlap=127)
    assert train.tolist() == [0, 1] and kept[0] == 129


TIMES = {
    "iso": lambda k: f"2026-01-{1 + k // 24:02d}T{k % 24:02d}:00",
    "iso with zones": lambda k: f"2026-01-{1 + k // 24:02d} {k % 24:02d}:00Z",
    "numbers": lambda k: str(k / 4), "days": lambda k: f"{2000 + k}-03-01",
}  # fmt: skip


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("form", ["csv", "frame", "parquet", "huggingface"])
def test_each_client_is_tested_with_its_last_rows(table_as, kind, form):
    pandas = pytest.importorskip("pandas")
    order = np.random.default_rng(3).permutation(40)
    frame = pandas.DataFrame({
        "when": [TIMES[kind](int(k)) for k in order], "a": order.astype(float), "label": order % 2,
        "client": np.where(order % 4 < 2, "ann", "ben"),
    })  # fmt: skip
    cuts = {"split": "time", "time_column": "when", "test_fraction": 0.3, "validation_fraction": 0.25}
    data = of_settings({**cuts, "partitioner": "natural", **table_as(form, frame)})
    for i, mine in enumerate(([k for k in range(40) if k % 4 < 2], [k for k in range(40) if k % 4 >= 2])):
        rows = [part(i).x[:, 0].tolist() for part in (data.train, data.validation, data.test)]
        assert [*rows[0], *rows[1], *rows[2]] == mine and len(rows[2]) == 6


def test_windows_are_of_one_client_in_its_order(tmp_path):
    rows = ["when,client,a,label"]
    for k in reversed(range(24)):
        rows += [f"{k},ann,{k},0", f"{k},ben,{100 + k},0"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    given_ = {"dataset": "series", "data": str(tmp_path / "a.csv"), "window_length": 4, "window_step": 2}
    data = of_settings({**given_, "split": "time", "time_column": "when", "num_classes": 2}, partitioner="natural")
    train, test = data.train(0).x.numpy(), data.test(0).x.numpy()
    assert np.array_equal(train[0, 0], [0, 1, 2, 3]) and test[-1, 0, -1] == 23
    assert train.max() < test.min(), "no row is in windows of both"
    assert data.train(1).x.min() >= 100


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_owners_of_whom_a_cut_by_time_leaves_too_little_are_no_clients(tmp_path, step, validation):
    rows = [f"{who},{k},0" for who in range(30) for k in range(4 + 2 * who)]
    (tmp_path / "a.csv").write_text("\n".join(["client,a,label", *rows]))
    chosen = DataSettings(
        dataset="series", data=str(tmp_path / "a.csv"), window_length=4, window_step=step, min_samples=5,
        split="time", validation_fraction=validation, num_classes=2,
    )  # fmt: skip
    count = default_clients(chosen)
    data = FederatedData(chosen, count, 1)
    (said,) = (line for line in data.remarks if "left out" in line)
    assert f"{30 - count} of 30 owners have fewer than min-samples = 5 samples in parts that do not overlap" in said
    overlapping = -(-4 // step) - 1
    for i, who in enumerate(range(30 - count, 30)):  # the larger ones, all of them
        windows = who * 2 // step + 1
        parts = [of.x for of in (data.train(i), data.validation(i), data.test(i)) if len(of.x)]
        assert windows - overlapping >= 5 and len(data.train(i).x) and len(data.test(i).x)
        assert sum(map(len, parts)) == windows - overlapping * (len(parts) - 1)
        assert all(first.max() < then.min() for first, then in zip(parts, parts[1:])), "no row is in two parts"
    with pytest.raises(ConfigError, match=f"at most {count}, .* with at least 5 samples in parts that do not overlap"):
        FederatedData(chosen, count + 1, 1)
    apart = " in parts that do not overlap" * (step < 4)
    with pytest.raises(DataError, match=rf"none of the 30 owners .* 99 samples{apart}; .* window-step \(now {step}\)"):
        FederatedData(replace(chosen, min_samples=99), 1, 1)


@pytest.mark.parametrize("length", [0, 5])
@pytest.mark.parametrize("split", ["mixed", "time"])
def test_a_step_counts_nothing_where_a_column_names_the_windows(tmp_path, split, length):
    for who in ("ann", "ben"):
        rows = [f"{k // 5},{k},{k // 5 % 2}" for k in range(200)]
        (tmp_path / f"{who}.csv").write_text("\n".join(["window,a,label", *rows]))
    chosen = DataSettings(dataset="clients", data=str(tmp_path), window_step=2, window_length=length, split=split)
    data = FederatedData(chosen, 2, 1)
    assert not any("overlap" in said for said in data.remarks)
    assert [data.sizes(i) for i in range(2)] == [(30, 10)] * 2
    alone = own_data(chosen, str(tmp_path / "ann.csv"), 0, 1)
    assert alone.sizes(0) == (30, 10)


def test_a_user_s_own_windows_say_how_many_overlap(handed_over):
    rows = np.arange(200, dtype=np.float32) / 16
    windows, labels = np.lib.stride_tricks.sliding_window_view(rows, 8)[::2, None], np.arange(97) % 2
    made = fedpfl.Dataset.of("mine", windows.copy(), labels, overlap=overlap_of(8, 2), client_train=np.arange(97) // 49)
    data = of_settings({**handed_over(made), "split": "time", "validation_fraction": 0.2})
    for i in range(2):
        parts = [part(i).x for part in (data.train, data.validation, data.test)]
        assert sum(map(len, parts)) == 49 - i - 2 * 3, "three windows are left out at each of two cuts"
        assert all(len(first) and first.max() < then.min() for first, then in zip(parts, parts[1:]))
    (said,) = of_settings(handed_over(made)).remarks
    assert said.startswith("mine: windows overlap, so test windows share rows with training windows")
    few = replace(made, overlap=40)
    with pytest.raises(DataError, match="all others overlap with these: use fewer clients or longer series"):
        of_settings({**handed_over(few), "split": "time", "min_samples": 1, "partitioner": "iid"}, num_clients=2)


@pytest.mark.parametrize("overlap", [-1, True, 1.0, "1"])
def test_an_overlap_is_a_number_of_samples(overlap):
    with pytest.raises(DataError, match=f"mine: overlap is {overlap!r}, must be a whole number from 0"):
        fedpfl.Dataset.of("mine", np.zeros((4, 2), np.float32), np.arange(4) % 2, overlap=overlap)


def test_the_last_rows_of_several_owners_are_not_the_latest(tmp_path):
    rows = [f"{k},{who},{k},{k % 2}" for k in range(20) for who in ("ann", "ben")]
    (tmp_path / "a.csv").write_text("\n".join(["when,client,a,label", *rows]))
    given_ = {"dataset": "table", "data": str(tmp_path / "a.csv"), "time_column": "when", "split": "time"}
    for name in ("iid", "dirichlet"):
        with pytest.raises(ConfigError, match=f"partitioner = .{name}.: must be natural with split = .time. and t"):
            of_settings(given_, partitioner=name)
    assert of_settings(given_, partitioner="natural").test(0).x.flatten().tolist() == [15, 16, 17, 18, 19]
    alone = of_settings({**given_, "client_column": "", "ignore_columns": "client"}, partitioner="iid")
    assert all(alone.test(i).x.max() > alone.train(i).x.max() for i in range(alone.num_clients))


def test_a_time_that_is_none_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("when,a,label\n1,2,0\n3.4.2026,2,1\n")
    with pytest.raises(
        DataError, match=r"line 3, column '[a-z]*': '3.4.2026' is no time: must be a number or ISO 8601"
    ):
        of_settings({"dataset": "table", "data": str(tmp_path / "a.csv"), "time_column": "when"})
    with pytest.raises(DataError, match=r"no column 'time' \(time-column\)"):
        of_settings({"dataset": "table", "data": str(tmp_path / "a.csv"), "time_column": "time"})
    x, y = arrays()["train"]
    with pytest.raises(ConfigError, match=r"split = 'time'.*has a test set: use .given."):
        np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        of_settings({"dataset": "npz", "data": str(tmp_path / "a.npz"), "split": "time"})


def test_class_names_have_no_meaning_for_targets():
    from fedpfl.setup.config import Config

    with pytest.raises(ConfigError, match="class-names = 'a,b': must be empty with loss = \"mse\""):
        Config.parse({"loss": "mse", "class-names": "a,b"})
