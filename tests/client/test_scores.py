"""Metrics of a test, against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpfl.core.errors import ConfigError
from fedpfl.core.metrics import CLASSES, LABELS, METRICS, TARGETS, combined, require, value
from fedpfl.training.measure import _OURS, find, find_working, measured

sklearn = pytest.importorskip("sklearn.metrics")


def of(name, outputs, y, loss):
    total, count = measured(find(name), outputs, y, loss)[name]
    return value(name, total, count)


def classes(seed, n=60, c=7):
    """Return logits of which some are equal, and labels without the last class."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, c)).round(1)).float(), torch.from_numpy(rng.integers(0, c - 1, n))


def test_every_metric_is_computed():
    assert _OURS.keys() == METRICS.keys()


def test_functions_of_sklearn_get_the_truth_first():
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.normal(size=(50, 1))).float()
    outputs = y + torch.from_numpy(rng.normal(size=(50, 1))).float()
    for name in ("r2_score", "explained_variance_score", "mean_absolute_percentage_error", "mean_pinball_loss"):
        expected = getattr(sklearn, name)(y.numpy(), outputs.numpy())
        assert of_own(f"sklearn.metrics:{name}", outputs, y, TARGETS) == pytest.approx(expected)


def of_own(word, outputs, y, loss):
    ((total, count),) = measured(find(word), outputs, y, loss).values()
    return total / count


def test_what_says_nothing_is_not_measured():
    assert (
        measured(find("r2"), torch.ones(1, 1), torch.zeros(1, 1), TARGETS)["r2"][1] == 0
    )  # one sample has no variance
    for classes_, refused in ((3, True), (5, True), (6, False)):
        if refused:
            with pytest.raises(ConfigError, match=r"^metrics = 'top-5-accuracy': is 1 whatever a model says: of \d"):
                find_working("top-5-accuracy", classes_, CLASSES)
        else:
            assert find_working("top-5-accuracy", classes_, CLASSES)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_classes_are_sklearn_s(seed):
    outputs, y = classes(seed)
    said, scores, truth = outputs.argmax(1).numpy(), outputs.double().softmax(1).numpy(), y.numpy()
    expected = {
        "balanced-accuracy": sklearn.recall_score(
            truth, said, average="macro", labels=np.unique(truth), zero_division=0
        ),
        "precision-macro": sklearn.precision_score(truth, said, average="macro", zero_division=0),
        "recall-macro": sklearn.recall_score(truth, said, average="macro", zero_division=0),
        "f1-macro": sklearn.f1_score(truth, said, average="macro", zero_division=0),
        "f1-weighted": sklearn.f1_score(truth, said, average="weighted", zero_division=0),
        "auroc": np.mean([sklearn.roc_auc_score(truth == c, scores[:, c]) for c in range(6)]),
        "average-precision": np.mean([sklearn.average_precision_score(truth == c, scores[:, c]) for c in range(6)]),
    }
    values = {name: of(name, outputs, y, CLASSES) for name in expected}
    assert values == pytest.approx(expected, abs=1e-12)


def test_the_five_best_are_sklearn_s():
    outputs, y = classes(1)
    outputs += torch.rand(outputs.shape, generator=torch.Generator().manual_seed(1))  # no two are equal
    expected = sklearn.top_k_accuracy_score(y.numpy(), outputs.numpy(), k=5, labels=range(7))
    assert of("top-5-accuracy", outputs, y, CLASSES) == pytest.approx(expected)


def test_of_two_classes_the_second_is_the_positive_one():
    rng = np.random.default_rng(1)
    outputs, y = torch.from_numpy(rng.normal(size=(40, 2))).float(), torch.from_numpy(rng.random(40) < 0.1).long()
    labels_and_scores = y.numpy(), (outputs[:, 1] - outputs[:, 0]).numpy()
    assert of("auroc", outputs, y, CLASSES) == pytest.approx(sklearn.roc_auc_score(*labels_and_scores))
    assert of("average-precision", outputs, y, CLASSES) == pytest.approx(
        sklearn.average_precision_score(*labels_and_scores)
    )
    swapped = outputs.flip(1), 1 - y
    (both,) = {
        measured(find_working("average-precision", 2, CLASSES, permuted=True), *pair, CLASSES)["average-precision"]
        for pair in ((outputs, y), swapped)
    }
    expected = [of("average-precision", *pair, CLASSES) for pair in ((outputs, y), swapped)]
    assert value("average-precision", *both) == pytest.approx(np.mean(expected)), "the classes' numbering is open"


def test_metrics_of_labels_are_sklearn_s():
    rng = np.random.default_rng(2)
    outputs, truth = rng.normal(size=(50, 4)), rng.random((50, 4)) < 0.3
    said = outputs > 0
    arguments = torch.from_numpy(outputs), torch.from_numpy(truth).float(), LABELS
    for kind in ("macro", "micro", "weighted"):
        expected = sklearn.f1_score(truth, said, average=kind, zero_division=0)
        assert of(f"f1-{kind}", *arguments) == pytest.approx(expected)
    assert of("auroc", *arguments) == pytest.approx(sklearn.roc_auc_score(truth, outputs))
    assert of("average-precision", *arguments) == pytest.approx(sklearn.average_precision_score(truth, outputs))


def test_metrics_of_targets_are_sklearn_s_and_ratios_of_sums_add_up():
    rng = np.random.default_rng(3)
    outputs, targets = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    arguments = torch.from_numpy(outputs), torch.from_numpy(targets), TARGETS
    assert of("mae", *arguments) == pytest.approx(sklearn.mean_absolute_error(targets, outputs))
    assert of("rmse", *arguments) == pytest.approx(sklearn.mean_squared_error(targets, outputs) ** 0.5)
    assert of("r2", *arguments) == pytest.approx(sklearn.r2_score(targets, outputs))
    clients = [slice(0, 4), slice(4, 30)]
    for name in ("mae", "rmse"):
        pairs = [measured(find(name), arguments[0][part], arguments[1][part], TARGETS)[name] for part in clients]
        assert combined(name, pairs) == pytest.approx(of(name, *arguments))
    each = [measured(find("r2"), arguments[0][part], arguments[1][part], TARGETS)["r2"] for part in clients]
    assert combined("r2", each) == pytest.approx((each[0][0] + each[1][0]) / 2)


def test_what_is_not_defined_does_not_count():
    outputs, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    assert measured(find("auroc,f1-macro"), outputs, y, CLASSES) == {"auroc": (0.0, 0), "f1-macro": (1.0, 1)}
    assert measured(find("auroc"), outputs[:0], y[:0], CLASSES) == {"auroc": (0.0, 0)}
    assert combined("auroc", [(0.0, 0)]) is None and combined("auroc", [(0.0, 0), (0.5, 1)]) == 0.5


@pytest.mark.parametrize(
    ("text", "by", "loss", "message"),
    [
        ("f1-makro", "accuracy", CLASSES, "metrics = 'f1-makro': must be one of accuracy, balanced-accuracy"),
        ("mae", "accuracy", CLASSES, "metrics = 'mae': must be one of"),
        ("f1-macro", "accuracy", TARGETS, "must be one of accuracy, mae, rmse, r2, or MODULE:NAME"),
        ("auroc, auroc", "accuracy", CLASSES, "names a metric twice"),
        ("auroc", "f1-macro", CLASSES, "choose-by = 'f1-macro': must be one of accuracy, loss, auroc"),
        ("parts:loss", "accuracy", CLASSES, "metrics = 'parts:loss': needs another name"),
    ],
)
def test_a_wrong_metric_is_one_line(text, by, loss, message):
    with pytest.raises(ConfigError) as error:
        require(text, by, loss)
    assert message in str(error.value)
