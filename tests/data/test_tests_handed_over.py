"""A test set that is handed over is nobody's training set, in whatever form it comes."""

from __future__ import annotations

import numpy as np
import pytest

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.data import DataSettings, FederatedData, default_clients

TRAIN, TEST = 14, 6
WHO = ("ann", "ben")


def samples(client, part):
    """Return x, whose first column tells whose sample of which part a row is, and y."""
    n = TRAIN if part == "train" else TEST
    x = np.zeros((n, 3), np.float32)
    x[:, 0] = 1000 * (part == "test") + 100 * client + np.arange(n)
    return x, np.arange(n) % 2


def arrays(client):
    return {f"{kind}_{part}": each for part in ("train", "test") for kind, each in zip("xy", samples(client, part))}


def of_all():
    """Return the arrays of both clients, with the owner of each sample."""
    joined = {key: np.concatenate([arrays(client)[key] for client in (0, 1)]) for key in arrays(0)}
    return {**joined, "client_train": np.repeat([0, 1], TRAIN), "client_test": np.repeat([0, 1], TEST)}


def table(client):
    lines = ["a,b,c,label,client,split"]
    for part in ("train", "test"):
        lines += [f"{','.join(map(str, x))},{y},{WHO[client]},{part}" for x, y in zip(*samples(client, part))]
    return lines


def a_folder_of_arrays(folder):
    for client in (0, 1):
        np.savez(folder / f"{WHO[client]}.npz", **arrays(client))
    return {"dataset": "clients", "data": str(folder)}


def a_file_of_arrays(folder):
    np.savez(folder / "all.npz", **of_all())
    return {"dataset": "npz", "data": str(folder / "all.npz")}


def a_folder_of_tables(folder):
    for client in (0, 1):
        (folder / f"{WHO[client]}.csv").write_text("\n".join(table(client)))
    return {"dataset": "clients", "data": str(folder), "ignore_columns": "client", "client_column": ""}


def a_table(folder):
    (folder / "all.csv").write_text("\n".join([*table(0), *table(1)[1:]]))
    return {"dataset": "table", "data": str(folder / "all.csv")}


def pairs(_):
    return [(samples(i, "train"), samples(i, "test")) for i in (0, 1)]


def a_data_set(_):
    return fedpfl.Dataset.of("mine", **of_all())


FORMS = [a_folder_of_arrays, a_file_of_arrays, a_folder_of_tables, a_table, pairs, a_data_set]


@pytest.mark.parametrize("form", FORMS)
def test_each_client_keeps_its_own_test_set(tmp_path, handed_over, form):
    source = form(tmp_path)
    source = source if isinstance(source, dict) else handed_over(source)
    settings = DataSettings(**source)
    data = FederatedData(settings, default_clients(settings) or 0, 1)
    assert data.num_clients == 2
    for client in (0, 1):
        for part in ("train", "test"):
            assert np.array_equal(getattr(data, part)(client).x.numpy(), samples(client, part)[0])
    pooled = FederatedData(DataSettings(**source, split="mixed"), 2, 1)
    assert pooled.sizes(0) == (15, 5)
    # A partitioner that takes one pool of samples has no place for it.
    cut = FederatedData(DataSettings(**source, partitioner="pfllib-pathological"), 2, 1)
    assert sum(sum(cut.sizes(client)) for client in (0, 1)) == 40
    with pytest.raises(ConfigError, match='split = \'given\': must be "mixed" for partitioner = "pfllib-path'):
        FederatedData(DataSettings(**source, partitioner="pfllib-pathological", split="given"), 2, 1)


def test_published_data_sets_are_one_pool(tmp_path):
    np.savez(tmp_path / "mnist.npz", **{key: each for key, each in of_all().items() if key[0] in "xy"})
    data = FederatedData(DataSettings(dataset="mnist", data_dir=str(tmp_path), partitioner="iid"), 2, 1)
    assert data.sizes(0) == (15, 5)
