"""The ready-made configurations: known to the program, feasible, what the papers state."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpfl import models
from fedpfl.data import Dataset, partition, table
from fedpfl.data.datasets import text
from fedpfl.setup.all_settings import check_keys
from fedpfl.setup.config import Config

FOLDER = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.toml"))

FEDDECOMP = {  # section 4.1
    "method": "feddecomp", "num-server-rounds": 300, "fraction-train": 1.0, "num-clients": 40,
    "partitioner": "dirichlet-client", "dirichlet-alpha": 0.1, "train-samples": 500, "test-samples": 100,
    "local-epochs": 5, "batch-size": 100, "optimizer": "sgd", "learning-rate": 0.1,
}  # fmt: skip
FEDREG = {  # section 4.1
    "method": "fedreg", "model": "convnet", "num-server-rounds": 100, "fraction-train": 0.2, "partitioner": "dirichlet",
    "dirichlet-alpha": 0.1, "split": "mixed", "test-fraction": 0.25, "local-epochs": 5, "batch-size": 20,
    "optimizer": "sgd", "learning-rate": 0.01, "momentum": 0.9,
}  # fmt: skip
FEDFAC = {  # section 5.1
    "num-clients": 100, "fraction-train": 0.1, "split": "mixed", "test-fraction": 0.2, "optimizer": "adam",
    "learning-rate": 0.001, "momentum": 0.9, "method": "fedfac", "fedfac-variant": "dynamic",
}  # fmt: skip
FACTORIZED_FL = {  # section 5.1, appendices B.1 and C.3
    "method": "factorized-fl", "model": "resnet9", "num-clients": 20, "fraction-train": 1.0, "permute-labels": True,
    "batch-size": 256, "optimizer": "sgd", "learning-rate": 1e-3, "momentum": 0.9, "weight-decay": 1e-6,
}  # fmt: skip
ONE_DOMAIN = {
    **FACTORIZED_FL, "partitioner": "dirichlet", "dirichlet-alpha": 0.5, "factorized-fl-threshold": 0.0,
    "factorized-fl-scaling": 1.0, "factorized-fl-min-aggregate": 10,
}  # fmt: skip

STATED: dict[str, dict[str, Any]] = {
    "feddecomp-cifar10": {
        **FEDDECOMP, "dataset": "cifar10", "model": "resnet8",
        "feddecomp-rank-conv": 0.6, "feddecomp-rank-linear": 0.6,
    },
    "feddecomp-cifar100": {
        **FEDDECOMP, "dataset": "cifar100", "model": "resnet10",
        "feddecomp-rank-conv": 0.8, "feddecomp-rank-linear": 0.4,
    },
    "feddecomp-tiny-imagenet": {
        **FEDDECOMP, "dataset": "tiny-imagenet", "model": "resnet10",
        "feddecomp-rank-conv": 0.8, "feddecomp-rank-linear": 0.4,
    },
    "feddecomp-ag-news": {  # appendix B
        "method": "feddecomp", "dataset": "ag-news", "model": "transformer", "partitioner": "dirichlet-client",
        "dirichlet-alpha": 1.0, "train-samples": 3000,
    },
    "feddecomp-imagenet-subset": {  # appendix B
        "method": "feddecomp", "model": "resnet10", "partitioner": "dirichlet-client", "dirichlet-alpha": 0.1,
        "train-samples": 2000,
    },
    "fedreg-fashion-mnist": {**FEDREG, "dataset": "fashion-mnist", "num-clients": 50},
    "fedreg-cifar10": {**FEDREG, "dataset": "cifar10", "num-clients": 50},
    "fedreg-cifar100": {**FEDREG, "dataset": "cifar100", "num-clients": 50},
    "fedreg-emnist": {**FEDREG, "dataset": "emnist", "num-clients": 50},
    "fedreg-testbed": {**FEDREG, "dataset": "fashion-mnist", "num-clients": 30},
    "fedfac-cifar10": {
        **FEDFAC, "dataset": "cifar10", "model": "resnet18", "partitioner": "dirichlet", "dirichlet-alpha": 0.1,
        "fedfac-layers": "16,17",
    },
    "fedfac-cifar100": {
        **FEDFAC, "dataset": "cifar100", "model": "vgg16", "partitioner": "pathological", "classes-per-client": 5,
        "fedfac-layers": "15", "fedfac-kappa": "0.9", "fedfac-tau": "0.95",
    },
    "fedfac-femnist": {
        **FEDFAC, "model": "fedavg-cnn", "num-clients": 1079, "partitioner": "natural", "num-server-rounds": 500,
        "local-epochs": 20, "batch-size": 16, "fedfac-layers": "2", "fedfac-tau": "0.9", "fedfac-kappa": "0.75",
    },
    "fedfac-shakespeare": {
        **FEDFAC, "dataset": "shakespeare", "model": "char-lstm", "num-clients": 778, "partitioner": "natural",
        "num-server-rounds": 100, "local-epochs": 5, "batch-size": 32, "fedfac-layers": "1",
    },
    "factorized-fl-cifar10": {**ONE_DOMAIN, "dataset": "cifar10"},
    "factorized-fl-svhn": {**ONE_DOMAIN, "dataset": "svhn"},
    "factorized-fl-cifar100": {
        **FACTORIZED_FL, "dataset": "cifar100", "partitioner": "domains", "factorized-fl-threshold": 0.95,
        "factorized-fl-scaling": 20.0, "factorized-fl-min-aggregate": 4,
    },
    "speed-mnist": {
        "method": "fedavg", "model": "fedavg-cnn", "dataset": "mnist", "num-clients": 20, "fraction-train": 0.2,
        "batch-size": 20, "local-epochs": 5,
    },
}  # fmt: skip

# Samples, classes and shape of the files that scripts of experiments/ make.
MADE = {
    "femnist": ("245,114", "62", "28×28×1"),
    "imagenet-subset": ("80,000 + 16,000", "400", "64×64×3"),
}

VOCABULARIES = {"shakespeare": len(text.CHARACTERS), "ag-news": text.VOCABULARY}


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def described(config: Config) -> tuple[str, str, str]:
    """Return the numbers of samples and of classes, and the shape of a sample."""
    if config.data.dataset == "npz":
        return MADE[Path(config.data.data).stem]
    info = next(info for info in table() if info.name == config.data.dataset)
    return info.size, info.classes, info.shape


def shares_of(config: Config) -> list[Any]:
    """Divide a stand-in that has the data set's numbers of samples and classes, and owners with the same number."""
    size, classes, _ = described(config)
    sizes = [int(n.replace(",", "")) for n in size.split(" + ")]
    if config.data.partitioner == "natural":  # each owner has as many, however many there are
        sizes = [min(n, 250 * config.data.num_clients) for n in sizes]
    labels = [np.arange(n, dtype=np.int64) % int(classes) for n in sizes]
    pixels = [np.zeros((n, 1, 1, 1), np.uint8) for n in sizes]
    owners = np.arange(sizes[0]) % config.data.num_clients
    data = Dataset.of(config.data.dataset, pixels[0], labels[0], *(pixels[1:] + labels[1:] or [None, None]), owners)
    return partition(data, config.data, config.data.num_clients, config.run.seed)


def test_every_file_is_checked_and_every_checked_file_exists() -> None:
    assert [path.stem for path in FILES] == sorted(STATED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_states_what_the_paper_states_and_the_data_and_the_model_fit(path: Path) -> None:
    values, content = read(path), path.read_text(encoding="utf-8")
    check_keys(values)
    config = Config.parse(values)
    used = config.flat()
    assert {key: used[key] for key in values} == values
    assert {key: values.get(key) for key in STATED[path.stem]} == STATED[path.stem]
    assert f"#   fedpfl run --run-config configs/{path.name}\n" in content
    # Places, names and machines are the user's; a file that a script of experiments/ makes is named as there.
    assert not {"output-dir", "state-dir", "data-dir", "run-name", "resume", "device", "threads"} & {*values}
    assert values.get("data", "~/.fedpfl/data/").startswith("~/.fedpfl/data/")
    for method in ("fedavg", "local", "feddecomp"):
        Config.parse({"feddecomp-variant": "simultaneous", **values, "method": method})
    shares = shares_of(config)
    assert len(shares) == config.data.num_clients
    assert min(min(len(share.train), len(share.test)) for share in shares) >= 1
    _, classes, size = described(config)
    vocabulary = VOCABULARIES.get(config.data.dataset, 0)
    if vocabulary:
        shape: tuple[int, ...] = (int(size.split()[0]),)
    else:
        height, width, channels = map(int, size.split("×"))
        shape = (channels, height, width)
    with torch.device("meta"):  # no memory, no numbers: only shapes
        model = models.build(config.run.model, shape, int(classes), vocabulary)
        inputs = torch.empty(2, *shape, dtype=torch.int64 if vocabulary else None)
        assert model(inputs).shape == (2, int(classes))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])  # the columns of table 1
def test_feddecomp_clients_get_500_and_100_samples_and_never_more(alpha) -> None:
    # With B = 100 a 501st sample would be a batch of its own, on which BatchNorm diverges.
    shares = shares_of(Config.parse({**read(FOLDER / "feddecomp-cifar10.toml"), "dirichlet-alpha": alpha}))
    train, test = ([len(part) for part in parts] for parts in zip(*shares, strict=True))
    assert max(train) == 500 and min(train) >= 495  # ⌊500·q + ½⌋ of each of ten classes
    assert max(test) == 100 and min(test) >= 95


def test_clients_of_a_domain_train_on_1200_samples() -> None:
    for share in shares_of(Config.parse(read(FOLDER / "factorized-fl-cifar100.toml"))):
        assert (len(share.train), len(share.test)) == (1200, 300)


def test_a_round_of_the_speed_setting_is_57000_samples() -> None:
    config = Config.parse(read(FOLDER / "speed-mnist.toml"))
    shares = shares_of(config)
    asked = round(config.run.fraction_train * len(shares))
    assert {len(share.train) for share in shares} == {2850}
    assert asked * 2850 * config.training.local_epochs == 57_000


@pytest.mark.parametrize("page", ["devices/deployment.md", "devices/jetson.md"])
def test_runs_on_devices_are_shown_with_settings_that_fit_and_data_that_boards_have(page):
    shown = re.findall(r"flwr run [^']*'([^']+)'", (FOLDER.parent / "docs" / page).read_text())
    assert shown
    for pairs in shown:
        config = Config.parse(tomllib.loads(pairs.replace(" ", "\n")))
        assert config.data.dataset not in ("digits", "svhn")  # of scikit-learn, and read with SciPy
