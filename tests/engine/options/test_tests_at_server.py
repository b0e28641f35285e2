"""A test set at the server, and clients that only train or only test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import LocalGrid, federation, simulate

import fedpfl
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import FederatedData, federated_data
from fedpfl.setup.config import Config

SMALL = {"model": "mlp", "num_server_rounds": 2, "local_epochs": 1, "quiet": True, "workers": 0}


def file(folder, seed=0):
    rng = np.random.default_rng(seed)
    x, x_test = rng.normal(size=(200, 6)).astype(np.float32), rng.normal(size=(50, 6)).astype(np.float32)
    y, y_test = (x[:, 0] > 0).astype(np.int64), (x_test[:, 0] > 0).astype(np.int64)
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return {"dataset": "npz", "data": str(folder / "data.npz"), "model": "mlp", "num_server_rounds": 2}, x_test, y_test


def test_the_server_tests_the_global_model_on_its_own_samples(tmp_path):
    source, x, y = file(tmp_path)
    for name, more in (("local", {}), ("flower", {"grid": LocalGrid})):
        run = simulate(tmp_path / name, 3, test_on="server", metrics="f1-macro", method="fedavg", **source, **more)
        last = run.metrics()[-1]
        assert last["global"]["samples"] == 50 and "f1-macro" in last["global"]
        assert sum(last["personalised"]["samples"].values()) + sum(n for n, _ in run.task()["samples"]) == 200
        with torch.no_grad():
            outputs = fedpfl.load(str(run.path)).model()(torch.from_numpy(x))
        assert last["global"]["accuracy"] == pytest.approx(float(np.mean(outputs.argmax(1).numpy() == y)))
    settings = Config.parse({"dataset": "npz", "data": source["data"], "test-on": "server"}).data
    data = federated_data(settings, 3, 1)
    assert max(np.concatenate(data.share(i)).max() for i in range(3)) < 200  # nobody gets a sample of the test set


def test_the_server_scales_its_samples_as_the_clients_do(tmp_path):
    source, x, y = file(tmp_path)
    source.update(method="fedavg", test_on="server", standardize="all")
    run = simulate(tmp_path / "run", 3, **source)
    config = Config.parse(federation(tmp_path / "run", 3, **source))
    data = FederatedData(config.data, 3, config.run.seed)
    positions = np.concatenate([data.share(i).train for i in range(3)])
    with np.load(source["data"]) as arrays:
        mine = arrays["x_train"][positions]
    assert len(mine) < 200  # the clients' tests have no say
    model = fedpfl.load(str(run.path)).model()
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))  # it scales them itself
    loss = float(torch.nn.functional.cross_entropy(outputs, torch.from_numpy(y)))
    assert run.metrics()[-1]["global"]["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_test_set_at_the_server_needs_a_global_model_and_a_test_set(tmp_path):
    source, x, y = file(tmp_path)
    with pytest.raises(ConfigError, match="test-on = 'server': needs a global model, and fedper has none"):
        simulate(tmp_path / "a", 2, test_on="server", method="fedper", **source)
    source["data"] = str(tmp_path / "other.npz")
    np.savez(source["data"], x=x, y=y)
    with pytest.raises(ConfigError, match="test-on = 'server': other has no test set"):
        simulate(tmp_path / "b", 2, test_on="server", method="fedavg", **source)
    for key, value in {"standardize": "client", "permute-labels": True, "split": "given", "test-at": "start"}.items():
        with pytest.raises(ConfigError, match=f"cannot be combined with {key}"):
            Config.parse({"method": "fedavg", "test-on": "server", key: value})


def clients(*sizes):
    rng = np.random.default_rng(1)

    def samples(count):
        x = rng.normal(size=(count, 4)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)

    return [(*samples(train), *samples(test)) for train, test in sizes]


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "fedproto", "fedala", "knn-per"])
def test_clients_may_only_train_or_only_test(elsewhere, method):
    run = fedpfl.run(**SMALL, method=method, data=clients((20, 10), (0, 12), (30, 0), (20, 10)))
    for line in run._folder.metrics():
        assert line["clients"] == [0, 2, 3]
        assert line["personalised"]["samples"] == {"0": 10, "1": 12, "3": 10}
        assert not line.get("failed")


def test_somebody_has_to_train_and_to_be_tested(elsewhere):
    for sizes, message in (
        (((20, 0), (20, 0)), "no client is tested"),
        (((0, 20), (0, 20)), "none of the 0 owners of the samples has"),
    ):
        with pytest.raises(DataError, match=message):
            fedpfl.run(**SMALL, method="fedavg", data=clients(*sizes))
