"""Rounds on a tiny problem against straight-line NumPy, written from the papers' equations.

Two of three clients train in a round, on all of their samples at once, so that the order of samples is no matter. The
model is two linear layers (one is batch normalisation for FedBN). Tolerances are those of float32 sums.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import add_model, simulate, softmax
from torch import nn
from torch.nn import functional as F

from fedpfl.core.frozen import frozen
from fedpfl.core.rng import generator
from fedpfl.data.federation import federated_data
from fedpfl.methods import fedala, fedas, fedgh, fedpac, fedtgp, fml, ifca, knn_per, pfedfda, pfedhn
from fedpfl.models import BaseHeadModel, registry
from fedpfl.setup import server_step as server_step
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

RATE, EPOCHS = 0.1, 2
BASE, HEAD = ("base.fc.weight", "base.fc.bias"), ("head.weight", "head.bias")


def two_layers(input_shape, num_classes, width=1.0):
    units = registry.channels(5, width)
    return BaseHeadModel(registry.named(flatten=nn.Flatten(), fc=nn.Linear(4, units)), nn.Linear(units, num_classes))


def normalised(input_shape, num_classes):
    return BaseHeadModel(registry.named(flatten=nn.Flatten(), norm=nn.BatchNorm1d(4)), nn.Linear(4, num_classes))


class Task:
    """A finished run, what it started from, and its data as float64."""

    def __init__(self, run, first):
        config = Config.parse(run.config())
        data = federated_data(config.data, 3, config.run.seed)
        self.train, self.test = (
            [(s.x.numpy().astype(np.float64), s.y.numpy()) for s in map(part, range(3))]
            for part in (data.train, data.test)
        )
        start = assemble(Config.parse({**run.config(), "method": "fedavg"}), (4,), 3)[0].state_dict()
        self.start = as_numpy(start)
        self.lines = run.metrics()
        self.rounds = [line["clients"] for line in self.lines]
        common = run.path / "global.safetensors"  # none where each client gets a model of its own
        self.shared = load_file(common) if common.exists() else {}
        assert [len(clients) for clients in self.rounds] == [first, 2, 2]

    def mean(self, arrays, clients, names, weights=None):
        """Return the mean over ``clients`` of the arrays called ``names``, weighted by training samples."""
        weights = [len(self.train[i][1]) for i in clients] if weights is None else weights
        return {k: sum(a * arrays[i][k] for a, i in zip(weights, clients, strict=True)) / sum(weights) for k in names}

    def check_loss(self, number, kind, logits):
        """Compare the loss over all test samples after a round; ``logits`` maps (client, x) to logits."""
        losses = [-np.log(softmax(logits(i, x))[np.arange(len(y)), y]) for i, (x, y) in enumerate(self.test)]
        np.testing.assert_allclose(self.lines[number][kind]["loss"], np.concatenate(losses).mean(), rtol=1e-5)

    def check(self, number, personalised, common=None):
        """Compare the losses of the clients' models, and of the common one; without ``common`` there is none."""
        self.check_loss(number, "personalised", personalised)
        if common is None:
            assert "global" not in self.lines[number]
        else:
            self.check_loss(number, "global", common)

    def check_shared(self, expected):
        assert self.shared.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(self.shared[name], array, atol=2e-6, err_msg=name)

    def follow(self, train, tested=None, weights=None, start=None, plain=lambda w: w):
        """Compare each round of a method whose clients send a model, ``train(client, w)``, and receive their mean.

        Parameters
        ----------
        train : callable
            Maps (client, common model) to the arrays that the client sends.
        tested : callable, optional
            Maps (client, common model) to the arrays with which it is tested; by default ``plain``.
        weights : list, optional
            Of the two clients of a round; by default their training samples.
        start : dict, optional
            The common model's arrays, if they are not those of the plain model.
        plain : callable
            Maps the common model to the arrays of the plain one.
        """
        w = self.start if start is None else start
        for index, clients in enumerate(self.rounds):
            w = self.mean({i: train(i, w) for i in clients}, clients, w, weights)
            self.check(index, lambda i, x, w=w: logits(tested(i, w) if tested else plain(w), x), common(plain(w)))
        self.check_shared(w)


def as_numpy(arrays):
    return {name: array.numpy().astype(np.float64) for name, array in arrays.items()}


def assemble_two_layers(**settings):
    values = {key.replace("_", "-"): value for key, value in settings.items()}
    return assemble(Config.parse({"model": "two-layers", "seed": 3, **values}), (4,), 3)[0]


def assembled(**settings):
    """Return the arrays that a method's model starts with."""
    return as_numpy(assemble_two_layers(**settings).state_dict())


def of_common(arrays):
    """Return the arrays of the model that all have in common, by the names of a plain one."""
    return {name[len("common.") :]: array for name, array in arrays.items() if name.startswith("common.")}


@pytest.fixture
def play(tmp_path, monkeypatch):
    add_model(monkeypatch, "two-layers", two_layers)
    add_model(monkeypatch, "normalised", normalised)
    rng = np.random.default_rng(5)
    client = np.repeat([0, 1, 2], [8, 12, 20])
    y = rng.integers(0, 3, 40)
    y[client == 1] = np.arange(12) % 2  # one client lacks a class
    x = rng.normal(size=(40, 4)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "task.npz", x=x, y=y, client=client)

    def run(method, model="two-layers", first=2, **settings):
        finished = simulate(
            tmp_path, 3, method=method, model=model, dataset="npz", data=str(tmp_path / "task.npz"),
            partitioner="natural", min_samples=2, batch_size=100, momentum=0.0, learning_rate=RATE,
            local_epochs=EPOCHS, fraction_train=0.67, num_server_rounds=3, **settings,
        )  # fmt: skip
        return Task(finished, first)

    return run


def features(w, x):
    return x @ w[BASE[0]].T + w[BASE[1]]


def head_of(w, z):
    return z @ w[HEAD[0]].T + w[HEAD[1]]


def logits(w, x):
    return head_of(w, features(w, x))


def common(w):
    return lambda i, x: logits(w, x)


def each(models):
    return lambda i, x: logits(models[i], x)


def towards(w, x, target):
    """Return the gradient of the mean cross-entropy to class probabilities ``target``."""
    z = features(w, x)
    d = (softmax(head_of(w, z)) - target) / len(x)
    dz = d @ w[HEAD[0]]
    return {BASE[0]: dz.T @ x, BASE[1]: dz.sum(0), HEAD[0]: d.T @ z, HEAD[1]: d.sum(0)}


def gradient(w, x, y):
    """Return the gradient of the mean cross-entropy."""
    return towards(w, x, np.eye(3)[y])


def stepped(w, slope, names=BASE + HEAD, rate=RATE):
    """Return ``w`` after a step down a slope, in some of its arrays."""
    return {k: a - rate * slope[k] if k in names else a for k, a in w.items()}


def descend(w, data, epochs, names):
    """Return ``w`` after gradient steps on the arrays called ``names``."""
    for _ in range(epochs):
        w = stepped(w, gradient(w, *data), names)
    return w


def test_fedprox(play):
    task = play("fedprox", fedprox_mu=0.5)

    def train(i, w):
        v = w
        for _ in range(EPOCHS):
            g = gradient(v, *task.train[i])
            v = stepped(v, {k: g[k] + 0.5 * (v[k] - w[k]) for k in v})
        return v

    task.follow(train)


def test_moon(play):
    task, mu, tau = play("moon", moon_mu=2.0), 2.0, 0.5
    last = {}

    def unit_features(w, x):
        z = features(w, x)
        return z, z / np.linalg.norm(z, axis=1, keepdims=True)

    def train(i, w):
        (x, y), v = task.train[i], w
        received, before = unit_features(w, x)[1], unit_features(last.get(i, w), x)[1]
        for _ in range(EPOCHS):
            g, (z, unit) = gradient(v, x, y), unit_features(v, x)
            near, far = (np.exp((unit * other).sum(1) / tau) for other in (received, before))
            d = (far / (near + far))[:, None] * (before - received) / tau / len(y)
            d = (d - unit * (unit * d).sum(1, keepdims=True)) / np.linalg.norm(z, axis=1, keepdims=True)
            g[BASE[0]] += mu * d.T @ x
            g[BASE[1]] += mu * d.sum(0)
            v = stepped(v, g)
        last[i] = v
        return v

    task.follow(train)


def test_fedavg_tuned_before_a_test(play):
    task = play("fedavg", tune_epochs=4)
    task.follow(lambda i, w: descend(w, task.train[i], EPOCHS, w), tested=lambda i, w: descend(w, task.train[i], 4, w))


def test_feddyn(play):
    task, alpha = play("feddyn", feddyn_alpha=0.5), 0.5
    w = task.start
    h = {k: np.zeros_like(a) for k, a in w.items()}
    h_i = [dict(h) for _ in range(3)]
    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            v = w
            for _ in range(EPOCHS):
                g = gradient(v, *task.train[i])
                v = stepped(v, {k: g[k] - h_i[i][k] + alpha * (v[k] - w[k]) for k in v})
            h_i[i] = {k: h_i[i][k] - alpha * (v[k] - w[k]) for k in v}
            trained[i] = v
        h = {k: h[k] - alpha / 3 * sum(trained[i][k] - w[k] for i in clients) for k in w}
        mean = task.mean(trained, clients, w, weights=[1, 1])
        w = {k: mean[k] - h[k] / alpha for k in w}
        task.check(index, common(w), common(w))
    task.check_shared(w)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_server_optimizer(play, monkeypatch, kind):
    monkeypatch.setattr(server_step, "BETA2", 0.8)
    monkeypatch.setattr(server_step, "TAU", 0.05)
    task = play("fedavg", server_optimizer=kind, server_learning_rate=0.3, server_momentum=0.6)
    w = task.start
    m, v = ({k: np.full_like(a, start) for k, a in w.items()} for start in (0, 0.05**2))
    for index, clients in enumerate(task.rounds):
        mean = task.mean({i: descend(w, task.train[i], EPOCHS, w) for i in clients}, clients, w)
        delta = {k: mean[k] - w[k] for k in w}
        if kind == "momentum":
            m = {k: 0.6 * m[k] + delta[k] for k in w}
            w = {k: w[k] + 0.3 * m[k] for k in w}
        else:
            m = {k: 0.6 * m[k] + 0.4 * delta[k] for k in w}
            sign = {k: np.sign(v[k] - delta[k] ** 2) for k in w}
            adam = {k: 0.8 * v[k] + 0.2 * delta[k] ** 2 for k in w}
            v = adam if kind == "adam" else {k: v[k] - 0.2 * delta[k] ** 2 * sign[k] for k in w}
            w = {k: w[k] + 0.3 * m[k] / (np.sqrt(v[k]) + 0.05) for k in w}
        task.check_loss(index, "global", common(w))
    task.check_shared(w)


def test_scaffold(play):
    task = play("scaffold")
    w = task.start
    c = {k: np.zeros_like(a) for k, a in w.items()}
    c_i = [dict(c) for _ in range(3)]
    for index, clients in enumerate(task.rounds):
        trained, change = {}, dict.fromkeys(w, 0.0)
        for i in clients:
            y = w
            for _ in range(EPOCHS):
                g = gradient(y, *task.train[i])
                y = stepped(y, {k: g[k] - c_i[i][k] + c[k] for k in y})
            new = {k: c_i[i][k] - c[k] + (w[k] - y[k]) / (EPOCHS * RATE) for k in w}
            change = {k: change[k] + new[k] - c_i[i][k] for k in w}
            c_i[i], trained[i] = new, y
        w = task.mean(trained, clients, w, weights=[1, 1])
        c = {k: c[k] + change[k] / 3 for k in w}
        task.check(index, common(w), common(w))
    task.check_shared(w)


def test_ditto(play):
    task, lam = play("ditto", ditto_pull=0.5, ditto_p_epochs=3), 0.5
    v = [task.start] * 3

    def train(i, w):
        for _ in range(3):
            g = gradient(v[i], *task.train[i])
            v[i] = stepped(v[i], {k: g[k] + lam * (v[i][k] - w[k]) for k in w})
        return descend(w, task.train[i], EPOCHS, w)

    task.follow(train, tested=lambda i, w: v[i])


def test_apfl(play):
    task = play("apfl", apfl_alpha=0.4)
    v, alpha = [task.start] * 3, [0.4] * 3

    def mixed(i, w):
        return {k: alpha[i] * v[i][k] + (1 - alpha[i]) * w[k] for k in w}

    def train(i, w):
        g, u = gradient(mixed(i, w), *task.train[i]), w
        slope = sum(float(((v[i][k] - w[k]) * g[k]).sum()) for k in w)
        alpha[i] = min(max(alpha[i] - RATE * slope, 0), 1)
        for _ in range(EPOCHS):
            g, g_mixed = gradient(u, *task.train[i]), gradient(mixed(i, u), *task.train[i])
            v[i], u = stepped(v[i], g_mixed, rate=RATE * alpha[i]), stepped(u, g)
        return u

    task.follow(train, tested=mixed, weights=[1, 1])


def test_pfedme(play):
    pull, inner = 3.0, 0.05
    task = play("pfedme", pfedme_pull=pull, pfedme_steps=4, pfedme_personal_learning_rate=inner)
    theta = {}

    def train(i, w):
        u = theta[i] = w
        for _ in range(EPOCHS):
            for _ in range(4):
                g = gradient(theta[i], *task.train[i])
                theta[i] = stepped(theta[i], {k: g[k] + pull * (theta[i][k] - u[k]) for k in u}, rate=inner)
            u = stepped(u, {k: pull * (u[k] - theta[i][k]) for k in u})
        return u

    # Who has never trained is tested with what it received.
    task.follow(train, tested=lambda i, w: theta.get(i, w), weights=[1, 1])


def test_fedala(play, monkeypatch):
    first, step = 10, 2.0
    monkeypatch.setattr(fedala, "SAMPLES", 1.0)
    monkeypatch.setattr(fedala, "RATE", step)
    task = play("fedala")
    heads, mixing = {}, [{k: np.ones_like(task.start[k]) for k in HEAD} for _ in range(3)]

    def mixed(i, w):
        """Return the weights that client i learns from where they stand, and what it starts from by them."""
        if i not in heads:
            return mixing[i], w
        weights = mixing[i]
        for _ in range(first if all((a == 1).all() for a in weights.values()) else 1):
            start = {**w, **{k: heads[i][k] + (w[k] - heads[i][k]) * weights[k] for k in HEAD}}
            g = gradient(start, *task.train[i])
            weights = {k: np.clip(weights[k] - step * g[k] * (w[k] - heads[i][k]), 0, 1) for k in HEAD}
        return weights, {**w, **{k: heads[i][k] + (w[k] - heads[i][k]) * weights[k] for k in HEAD}}

    def train(i, w):
        mixing[i], start = mixed(i, w)
        trained = descend(start, task.train[i], EPOCHS, w)
        heads[i] = {k: trained[k] for k in HEAD}
        return trained

    task.follow(train, tested=lambda i, w: mixed(i, w)[1])
    assert any((a[k] > 0).all() and (a[k] < 1).any() for a in mixing for k in HEAD)


@pytest.mark.parametrize(
    ("method", "settings", "shared", "steps"),
    [
        ("fedper", {}, BASE, [(EPOCHS, BASE + HEAD)]),
        ("fedrep", {"fedrep_p_epochs": 3}, BASE, [(3, HEAD), (EPOCHS, BASE)]),
        ("lg-fedavg", {}, HEAD, [(EPOCHS, BASE + HEAD)]),
    ],
)
def test_layers_of_which_some_stay(play, method, settings, shared, steps):
    task = play(method, **settings)
    models = [task.start] * 3
    for index, clients in enumerate(task.rounds):
        for i in clients:
            for epochs, names in steps:
                models[i] = descend(models[i], task.train[i], epochs, names)
        mean = task.mean(models, clients, shared)
        models = [{**w, **mean} for w in models]
        task.check(index, each(models))
    task.check_shared(mean)


@pytest.mark.parametrize(("tune", "tuned"), [("head", HEAD), ("everything", BASE + HEAD)])
def test_fedbabu(play, tune, tuned):
    task = play("fedbabu", fedbabu_tuning_epochs=4, fedbabu_tune=tune)
    w = task.start
    for index, clients in enumerate(task.rounds):
        w = {**w, **task.mean({i: descend(w, task.train[i], EPOCHS, BASE) for i in clients}, clients, BASE)}
        task.check(index, lambda i, x, w=w: logits(descend(w, task.train[i], 4, tuned), x), common(w))
    task.check_shared({k: w[k] for k in BASE})


@pytest.mark.parametrize("start", ["generic", "zero"])
def test_fedrod(play, start):
    task = play("fedrod", fedrod_personal_start=start)
    p = [{k: task.start[k] if start == "generic" else np.zeros_like(task.start[k]) for k in HEAD}] * 3

    def both(i, w):
        return {**w, **{k: w[k] + p[i][k] for k in HEAD}}

    def train(i, w):
        x, y = task.train[i]
        counts = np.bincount(y, minlength=3)
        for _ in range(EPOCHS):
            z = features(w, x)
            # Balanced softmax: n_c·exp(g_c) / Σ n_k·exp(g_k), 0 for a class that the client lacks.
            odds = counts * np.exp(head_of(w, z))
            d = (odds / odds.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
            of_personal, dz = gradient(both(i, w), x, y), d @ w[HEAD[0]]
            w = stepped(w, {BASE[0]: dz.T @ x, BASE[1]: dz.sum(0), HEAD[0]: d.T @ z, HEAD[1]: d.sum(0)})
            p[i] = stepped(p[i], of_personal)
        return w

    task.follow(train, tested=both)


def class_means(w, x, y):
    """Return the mean features of each class, 0 for those that are not there, and the numbers of samples."""
    of_class = np.eye(3)[y]
    counts = of_class.sum(0)
    return of_class.T @ features(w, x) / np.maximum(counts, 1)[:, None], counts


def pulled(w, x, y, prototypes, is_known, lam):
    """Train with a pull of each sample's features to the prototype of its class, where there is one."""
    for _ in range(EPOCHS):
        dz = 2 * (features(w, x) - prototypes[y]) * is_known[y][:, None] / 5 / len(y)
        g = gradient(w, x, y)
        g[BASE[0]] += lam * dz.T @ x
        g[BASE[1]] += lam * dz.sum(0)
        w = stepped(w, g)
    return w


@pytest.mark.parametrize("predict", ["model", "prototype"])
def test_fedproto(play, predict):
    task, lam = play("fedproto", fedproto_pull=0.5, fedproto_predict=predict), 0.5
    models, prototypes, is_known = [task.start] * 3, np.zeros((3, 5)), np.zeros(3, bool)
    for index, clients in enumerate(task.rounds):
        sums, counts = np.zeros((3, 5)), np.zeros(3)
        for i in clients:
            x, y = task.train[i]
            models[i] = pulled(models[i], x, y, prototypes, is_known, lam)
            means, sizes = class_means(models[i], x, y)
            sums, counts = sums + sizes[:, None] * means, counts + sizes
        prototypes = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], prototypes)
        is_known |= counts > 0
        if predict == "model":
            task.check_loss(index, "personalised", lambda i, x: logits(models[i], x))
            continue

        def nearest(i, x, prototypes=prototypes, is_known=is_known):
            apart = np.linalg.norm(features(models[i], x)[:, None] - prototypes, axis=2)
            return -np.where(is_known, apart, 1 + np.where(is_known, apart, 0).max(1, keepdims=True))

        task.check_loss(index, "personalised", nearest)


def test_feddistill(play):
    gamma = 0.6
    task = play("feddistill", feddistill_teaching=gamma)
    models, taught, is_known = [task.start] * 3, np.zeros((3, 3)), np.zeros(3, bool)
    for index, clients in enumerate(task.rounds):
        sums, counts = np.zeros((3, 3)), np.zeros(3)
        for i in clients:
            x, y = task.train[i]

            def loss(w, x=x, y=y, taught=taught, is_known=is_known):
                x, y = tensors((x, y))
                out = head_of(w, features(w, x))
                apart = -(torch.tensor(taught)[y] * F.log_softmax(out, 1)).sum(1) * torch.tensor(is_known)[y]
                return F.cross_entropy(out, y) + gamma * apart.mean()

            for _ in range(EPOCHS):
                models[i] = autograd(loss, models[i], task.start)
            q = softmax(logits(models[i], x))
            for c in set(y):
                sums[c] += q[y == c].mean(0)
                counts[c] += 1
        taught = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], taught)
        is_known = is_known | (counts > 0)
        task.check(index, each(models))
    assert is_known.all()


def test_fedpac(play, monkeypatch):
    monkeypatch.setattr(fedpac, "ALIGNMENT", 0.5)
    task, lam = play("fedpac"), 0.5
    base, heads = {k: task.start[k] for k in BASE}, [{k: task.start[k] for k in HEAD} for _ in range(3)]
    prototypes, is_known = np.zeros((3, 5)), np.zeros(3, bool)
    for index, clients in enumerate(task.rounds):
        trained, h, v, sums, counts = {}, {}, {}, np.zeros((3, 5)), np.zeros(3)
        for i in clients:
            x, y = task.train[i]
            n, w = len(y), {**base, **heads[i]}
            z = features(w, x)
            h[i] = np.eye(3)[y].T @ z / n
            v[i] = ((z**2).sum() / n - (h[i] ** 2).sum()) / n
            w = descend(w, (x, y), 1, HEAD)
            for _ in range(EPOCHS):
                g, dz = gradient(w, x, y), 2 * (features(w, x) - prototypes[y]) * is_known[y][:, None] / 5 / n
                g[BASE[0]] += lam * dz.T @ x
                g[BASE[1]] += lam * dz.sum(0)
                w = stepped(w, g, BASE)
            trained[i] = w
            means, sizes = class_means(w, x, y)
            sums, counts = sums + sizes[:, None] * means, counts + sizes
        base = task.mean(trained, clients, BASE)
        # Of two clients, one takes the share a of the other's head: the least (1 − a)²·V_i + a²·(V_j + ‖h_i − h_j‖²).
        i, j = clients
        for one, other in ((i, j), (j, i)):
            a = v[one] / (v[one] + v[other] + ((h[i] - h[j]) ** 2).sum())
            heads[one] = {k: (1 - a) * trained[one][k] + a * trained[other][k] for k in HEAD}
        prototypes = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], prototypes)
        is_known |= counts > 0
        task.check(index, lambda i, x, base=base: logits({**base, **heads[i]}, x))
    assert not task.shared


def test_knn_per(play, monkeypatch):
    monkeypatch.setattr(knn_per, "NEIGHBOURS", 3)
    task = play("knn-per", knn_per_weight=0.4)
    w = task.start
    for index, clients in enumerate(task.rounds):
        w = task.mean({i: descend(w, task.train[i], EPOCHS, w) for i in clients}, clients, w)

        def mixed(i, x, w=w):
            inputs, y = task.train[i]
            apart = np.linalg.norm(features(w, x)[:, None] - features(w, inputs), axis=2)
            near = np.argsort(apart, axis=1)[:, :3]
            votes = np.exp(-np.take_along_axis(apart, near, 1))
            neighbours = (np.eye(3)[y[near]] * votes[:, :, None]).sum(1) / votes.sum(1, keepdims=True)
            return np.log(0.4 * neighbours + 0.6 * softmax(logits(w, x)))

        task.check(index, mixed, common(w))
    task.check_shared(w)


def test_fedbn(play):
    task = play("fedbn", model="normalised")
    gamma, beta, mean, variance = (f"base.norm.{k}" for k in ("weight", "bias", "running_mean", "running_var"))
    head = {k: task.start[k] for k in HEAD}
    norms = [{k: task.start[k] for k in (gamma, beta, mean, variance)} for _ in range(3)]

    def normalise(x, m, v):
        return (x - m) / np.sqrt(v + 1e-5)

    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            x, y = task.train[i]
            u, v = norms[i], dict(head)
            for _ in range(EPOCHS):
                unit = normalise(x, x.mean(0), x.var(0))
                z = unit * u[gamma] + u[beta]
                d = (softmax(z @ v[HEAD[0]].T + v[HEAD[1]]) - np.eye(3)[y]) / len(y)
                dz = d @ v[HEAD[0]]
                u = {
                    gamma: u[gamma] - RATE * (dz * unit).sum(0),
                    beta: u[beta] - RATE * dz.sum(0),
                    mean: 0.9 * u[mean] + 0.1 * x.mean(0),
                    variance: 0.9 * u[variance] + 0.1 * x.var(0, ddof=1),
                }
                v = {HEAD[0]: v[HEAD[0]] - RATE * d.T @ z, HEAD[1]: v[HEAD[1]] - RATE * d.sum(0)}
            norms[i], trained[i] = u, v
        head = task.mean(trained, clients, HEAD)

        def predict(i, x, head=head):
            u = norms[i]
            return (normalise(x, u[mean], u[variance]) * u[gamma] + u[beta]) @ head[HEAD[0]].T + head[HEAD[1]]

        task.check(index, predict)
    task.check_shared(head)


def autograd(loss, w, names, rate=RATE):
    """Return ``w`` after a step down the gradient of ``loss``, a function of tensors by name, in some of them."""
    tensors = {k: torch.tensor(a, requires_grad=k in names) for k, a in w.items()}
    loss(tensors).backward()
    return stepped(w, {k: tensors[k].grad.numpy() for k in names}, names, rate)


def tensors(data):
    x, y = data
    return torch.tensor(x), torch.tensor(y)


def test_feddbe(play):
    kappa = 7.0
    task = play("feddbe", feddbe_kappa=kappa, first=3)
    w, offsets, consensus = task.start, np.zeros((3, 5)), 0
    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            x, y = tensors(task.train[i])
            if index == 0:
                local = descend(w, task.train[i], EPOCHS, w)
                share = len(y) / sum(len(labels) for _, labels in task.train)
                consensus = consensus + share * features(local, task.train[i][0]).mean(0)
                continue
            u = {**w, "own": offsets[i]}
            for _ in range(EPOCHS):

                def loss(u, x=x, y=y, consensus=consensus):
                    z = features(u, x)
                    apart = z.mean(0) - torch.tensor(consensus)
                    return F.cross_entropy(head_of(u, z + u["own"]), y) + kappa * (0.5 * apart**2).mean()

                u = autograd(loss, u, u)
            offsets[i], trained[i] = u.pop("own"), u
        w = task.mean(trained, clients, w) if trained else w
        task.check(index, lambda i, x, w=w: head_of(w, features(w, x) + offsets[i]), common(w))
    task.check_shared(w)


def test_fedcp(play):
    task = play("fedcp", fedcp_alignment=2.0)
    # The policy's first values are drawn by PyTorch after the model's.
    policy = {k: a for k, a in assembled(method="fedcp").items() if k.startswith("policy.")}
    shared, heads = {**{k: task.start[k] for k in BASE}, **policy}, [{k: task.start[k] for k in HEAD}] * 3
    common = {f"global_{k}": task.start[k] for k in HEAD}

    def divided(w, z, context):
        gate = (z * (context / context.norm())) @ w["policy.layer.weight"].T + w["policy.layer.bias"]
        gate = (gate - gate.mean(1, keepdim=True)) / (gate.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        gate = (gate * w["policy.norm.weight"] + w["policy.norm.bias"]).clamp(min=0)
        share = 1 / (1 + torch.exp(gate[:, 5:] - gate[:, :5]))
        return head_of(w, share * z) + ((1 - share) * z) @ w["global_head.weight"].T + w["global_head.bias"]

    def kernels(a, b):
        squares = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        return sum((-squares / 2 / width).exp().mean() for width in (10, 15, 20, 50))

    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            x, y = tensors(task.train[i])
            w = {**shared, **heads[i], **common}
            context, before = torch.tensor(w[HEAD[0]].sum(0)), torch.tensor(features(w, task.train[i][0]))

            def loss(w, x=x, y=y, context=context, before=before):
                z = features(w, x)
                apart = kernels(z, z) + kernels(before, before) - 2 * kernels(z, before)
                return F.cross_entropy(divided(w, z, context), y) + 2.0 * apart

            for _ in range(EPOCHS):
                w = autograd(loss, w, {*shared, *HEAD})
            heads[i] = {k: w[k] for k in HEAD}
            trained[i] = {**w, **{f"global_{k}": (w[f"global_{k}"] + w[k]) / 2 for k in HEAD}}
        shared, common = task.mean(trained, clients, shared), task.mean(trained, clients, common)

        def predict(i, x, shared=shared, common=common):
            w = {k: torch.tensor(a) for k, a in {**shared, **common, **heads[i]}.items()}
            return divided(w, features(w, torch.tensor(x)), w[HEAD[0]].sum(0)).numpy()

        task.check(index, predict)
    task.check_shared({**shared, **common})


def test_fedas(play, monkeypatch):
    monkeypatch.setattr(fedas, "ALIGNMENT_RATE", 0.2)
    task = play("fedas")
    base, last = {k: task.start[k] for k in BASE}, [None] * 3
    for index, clients in enumerate(task.rounds):
        weights = []
        for i in clients:
            x, y = task.train[i]
            before = last[i] or {**task.start, **base}
            means, sizes = class_means(before, x, y)
            w = {**before, **base}
            # The mean over a class's samples and all features, summed over the classes.
            dz = 2 * (features(w, x) - means[y]) / sizes[y][:, None] / 5
            w = {**w, BASE[0]: w[BASE[0]] - 0.2 * dz.T @ x, BASE[1]: w[BASE[1]] - 0.2 * dz.sum(0)}
            last[i] = descend(w, (x, y), EPOCHS, w)
            weights.append(sum((g**2).sum() for g in gradient(last[i], x, y).values()))
        base = task.mean(last, clients, BASE, weights)
        task.check(index, lambda i, x, w={**task.start, **base}: logits(last[i] or w, x))
    task.check_shared(base)


def test_fedgh(play, monkeypatch):
    for name, value in {"LEARNING_RATE": 0.3, "EPOCHS": 4, "BATCH_SIZE": 100}.items():
        monkeypatch.setattr(fedgh, name, value)
    task = play("fedgh")
    head, bases = {k: task.start[k] for k in HEAD}, [{k: task.start[k] for k in BASE}] * 3
    for index, clients in enumerate(task.rounds):
        pairs = []
        for i in clients:
            w = descend({**bases[i], **head}, task.train[i], EPOCHS, task.start)
            bases[i] = {k: w[k] for k in BASE}
            means, sizes = class_means(w, *task.train[i])
            pairs += [(means[c], c) for c in np.flatnonzero(sizes)]
        z, y = np.stack([mean for mean, _ in pairs]), np.array([c for _, c in pairs])
        for _ in range(4):
            d = (softmax(z @ head[HEAD[0]].T + head[HEAD[1]]) - np.eye(3)[y]) / len(y)
            head = {HEAD[0]: head[HEAD[0]] - 0.3 * d.T @ z, HEAD[1]: head[HEAD[1]] - 0.3 * d.sum(0)}
        task.check(index, lambda i, x, head=head: logits({**bases[i], **head}, x))
    task.check_shared(head)


def test_fedtgp(play, monkeypatch):
    lam, tau = 0.5, 1.5
    monkeypatch.setattr(fedtgp, "LEARNING_RATE", 0.2)
    monkeypatch.setattr(fedtgp, "EPOCHS", 5)
    monkeypatch.setattr(fedtgp, "MARGIN", tau)
    task = play("fedtgp", fedproto_pull=lam)
    # What PyTorch draws for the server's network, for embeddings and two layers of five features.
    torch.manual_seed(int(generator(3, "rule network", 1).integers(2**63 - 1)))
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    embedding = nn.Embedding(3, 5)
    drawn = [embedding.weight, first.weight, first.bias, second.weight, second.bias]
    server = {str(label): p.detach().double().numpy() for label, p in enumerate(drawn)}
    models, prototypes, is_known = [task.start] * 3, np.zeros((3, 5)), np.zeros(3, bool)

    def network(w):
        return (w["0"] @ w["1"].T + w["2"]).clamp(min=0) @ w["3"].T + w["4"]

    for index, clients in enumerate(task.rounds):
        z, c = [], []
        for i in clients:
            x, y = task.train[i]
            models[i] = pulled(models[i], x, y, prototypes, is_known, lam)
            means, sizes = class_means(models[i], x, y)
            z, c = [*z, *means[sizes > 0]], [*c, *np.flatnonzero(sizes)]
        z, c = np.stack(z), np.array(c)
        centres = np.stack([z[c == k].mean(0) for k in range(3)])
        apart = np.linalg.norm(centres[:, None] - centres, axis=2) + np.diag([np.inf] * 3)
        margin = min(apart.min(1).max(), tau)

        def loss(w, z=z, c=c, margin=margin):
            z, c = tensors((z, c))
            logits = -(z[:, None] - network(w)).norm(dim=2) - margin * F.one_hot(c, 3)
            return F.cross_entropy(logits, c)

        for _ in range(5):
            server = autograd(loss, server, server, rate=0.2)
        prototypes = network({k: torch.tensor(a) for k, a in server.items()}).numpy()
        is_known |= np.isin(range(3), c)
        task.check(index, each(models))
        np.testing.assert_allclose(task.lines[index]["details"]["margin"], margin, rtol=1e-5)


A, B = "base.fc.lora_A.default.weight", "base.fc.lora_B.default.weight"
LORA = {"trainable": "lora", "lora_rank": 3, "lora_alpha": 6.0}


def adapted_start(method="fedavg"):
    """Return what training starts from with adapters, the frozen weights too; B is 0."""
    model = assemble_two_layers(method=method, **LORA)
    return as_numpy({**model.state_dict(), **dict(frozen(model))})


def adapted(w):
    """Return the weights of the plain model; α/r is 2."""
    plain = {BASE[0]: w["base.fc.base_layer.weight"] + 2 * w[B] @ w[A], BASE[1]: w["base.fc.base_layer.bias"]}
    return {**plain, **{k: w[k] for k in HEAD}}


def descend_adapted(w, data):
    """Return ``w`` after the local epochs on adapter and head."""
    for _ in range(EPOCHS):
        g = gradient(adapted(w), *data)
        w = stepped(w, {**g, A: 2 * w[B].T @ g[BASE[0]], B: 2 * g[BASE[0]] @ w[A].T}, (A, B, *HEAD))
    return w


def test_fedsa_lora(play):
    task = play("fedsa-lora", **LORA)
    start = adapted_start()
    shared, personal = start[A], [{k: start[k] for k in (B, *HEAD)}] * 3
    for index, clients in enumerate(task.rounds):
        trained = {i: descend_adapted({**start, **personal[i], A: shared}, task.train[i]) for i in clients}
        for i in clients:
            personal[i] = {k: trained[i][k] for k in (B, *HEAD)}
        shared = task.mean(trained, clients, [A])[A]
        w = [adapted({**start, **personal[i], A: shared}) for i in range(3)]
        task.check(index, each(w))
    task.check_shared({A: shared})


@pytest.mark.parametrize("ranks", ["", "3,1,2"])
def test_flexlora(play, ranks):
    task = play("flexlora", flexlora_ranks=ranks, **LORA)
    ranks_of = [int(rank) for rank in ranks.split(",")] if ranks else [3, 3, 3]
    w = adapted_start()

    def cut(i, w):
        return {
            **w,
            A: np.where(np.arange(3)[:, None] < ranks_of[i], w[A], 0),
            B: np.where(np.arange(3) < ranks_of[i], w[B], 0),
        }

    for index, clients in enumerate(task.rounds):
        trained = {i: descend_adapted(cut(i, w), task.train[i]) for i in clients}
        products = {i: {"product": trained[i][B] @ trained[i][A]} for i in clients}
        u, s, v = np.linalg.svd(task.mean(products, clients, ["product"])["product"], full_matrices=False)
        w = {**w, **task.mean(trained, clients, HEAD), A: v[:3], B: (u * s)[:, :3]}
        task.check_loss(index, "personalised", lambda i, x, w=w: logits(adapted(cut(i, w)), x))
        assert ("global" in task.lines[index]) == (not ranks)
    # The factors may have other signs.
    np.testing.assert_allclose(task.shared[B] @ task.shared[A], w[B] @ w[A], atol=2e-6)
    assert task.shared.keys() == {A, B, *HEAD}


def gaussians(w, x, y, means):
    z, counts = features(w, x), np.bincount(y, minlength=3)
    centres = np.stack([z[y == c].mean(0) if counts[c] > 2 else means[c] for c in range(3)])
    return centres, (z - centres[y]).T @ (z - centres[y]) / (len(y) - 1) + np.eye(5)


def discriminant(means, covariance, y):
    """Return the head of Gaussians and the class shares of some labels."""
    shares = np.bincount(y, minlength=3) / len(y) + 1e-4
    inverse = np.linalg.inv((1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / 5 * np.eye(5))
    bias = np.log(shares / shares.sum()) - np.diag(means @ inverse @ means.T) / 2
    return {HEAD[0]: means @ inverse, HEAD[1]: bias}


def test_pfedfda(play, monkeypatch):
    beta = 0.3
    monkeypatch.setattr(pfedfda, "best_shares", lambda z, *_: torch.full((2,), beta).to(z))
    task = play("pfedfda")
    base, covariance = {k: task.start[k] for k in BASE}, np.eye(5)
    means = np.random.default_rng([3, 1]).random(task.start[HEAD[0]].shape)
    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            x, y = task.train[i]
            w = descend({**base, **discriminant(means, covariance, y)}, (x, y), EPOCHS, BASE)
            gaussian = gaussians(w, x, y, means)
            mixed = [beta * mine + (1 - beta) * all_ for mine, all_ in zip(gaussian, (means, covariance), strict=True)]
            trained[i] = {**w, "means": mixed[0], "covariance": mixed[1]}
        mean = task.mean(trained, clients, ("means", "covariance", *BASE))
        means, covariance, base = mean["means"], mean["covariance"], {k: mean[k] for k in BASE}

        def predict(i, x, base=base, means=means, covariance=covariance):
            gaussian = gaussians(base, *task.train[i], means)
            mixed = [beta * mine + (1 - beta) * all_ for mine, all_ in zip(gaussian, (means, covariance), strict=True)]
            return logits({**base, **discriminant(*mixed, task.train[i][1])}, x)

        task.check(index, predict)
    task.check_shared(base)


def test_ffa_lora(play):
    task = play("ffa-lora", **LORA)
    start, names = adapted_start("ffa-lora"), (B, *HEAD)
    assert 0.4 < np.abs(start[A]).max() <= 0.5  # uniform within 1/√inputs

    def train(i, w):
        for _ in range(EPOCHS):
            g = gradient(plain(w), *task.train[i])
            w = stepped(w, {**g, B: 2 * g[BASE[0]] @ start[A].T}, names)
        return w

    def plain(w):
        return adapted({**start, **w})

    task.follow(train, start={k: start[k] for k in names}, plain=plain)


def test_feddpa(play):
    task = play("feddpa", **LORA)
    w = adapted_start("feddpa")
    mine = [{name: w[name.replace("default", "personal")] for name in (A, B)}] * 3

    def weights(w, mine):
        """Return the plain model's weights with half of both adapters; α/r is 2."""
        return {**adapted(w), BASE[0]: w["base.fc.base_layer.weight"] + w[B] @ w[A] + mine[B] @ mine[A]}

    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            for _ in range(EPOCHS if index else 0):
                g = gradient(weights(w, mine[i]), *task.train[i])[BASE[0]]
                mine[i] = stepped(mine[i], {A: mine[i][B].T @ g, B: g @ mine[i][A].T}, (A, B))
            trained[i] = descend_adapted(w, task.train[i])
        w = {**w, **task.mean(trained, clients, (A, B, *HEAD))}
        task.check(index, lambda i, x, w=w: logits(weights(w, mine[i]), x), common(adapted(w)))
    task.check_shared({k: w[k] for k in (A, B, *HEAD)})


def test_ifca(play):
    task = play("ifca", ifca_clusters=3)
    orders = [generator(3, f"rule cluster {m}", 0) for m in (1, 2)]
    models = [task.start, *({k: of.permutation(a.ravel()).reshape(a.shape) for k, a in task.start.items()}
                            for of in orders)]  # fmt: skip
    chosen = set()

    def best(i, models):
        x, y = task.train[i]
        return int(np.argmin([-np.log(softmax(logits(w, x))[np.arange(len(y)), y]).sum() for w in models]))

    for index, clients in enumerate(task.rounds):
        choice = {i: best(i, models) for i in clients}
        trained = {i: descend(models[choice[i]], task.train[i], EPOCHS, task.start) for i in clients}
        means = []
        for m, w in enumerate(models):
            members = [i for i in clients if choice[i] == m]
            means.append(task.mean(trained, members, w, weights=[1] * len(members)) if members else w)
        models = means
        chosen |= {*choice.values()}
        task.check(index, lambda i, x, models=models: logits(models[best(i, models)], x))
        assert task.lines[index]["details"]["clusters"] == len({*choice.values()})
    assert len(chosen) > 1


def test_a_client_of_ifca_sends_its_update_from_the_model_of_its_last_cluster():
    # Both sides move it, so that a wrong sign would change no mean: but limits and noise would go by its length.
    sent = ifca.moved(np.array([5.0, 7.0]), np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([True, False]))
    assert sent.tolist() == [14.0, 7.0]


def test_fml(play, monkeypatch):
    alpha, beta = 0.3, 0.8
    monkeypatch.setattr(fml, "ALPHA", alpha)
    monkeypatch.setattr(fml, "BETA", beta)
    task = play("fml")
    w = of_common(assembled(method="fml"))
    assert all(not np.array_equal(a, task.start[k]) for k, a in w.items())
    models = [dict(task.start) for _ in range(3)]
    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            (x, y), u = task.train[i], w
            for _ in range(EPOCHS):
                q, q_own = softmax(logits(u, x)), softmax(logits(models[i], x))
                g = towards(u, x, beta * np.eye(3)[y] + (1 - beta) * q_own)
                g_own = towards(models[i], x, alpha * np.eye(3)[y] + (1 - alpha) * q)
                u, models[i] = stepped(u, g), stepped(models[i], g_own)
            trained[i] = u
        w = task.mean(trained, clients, w)
        task.check(index, each(models), common(w))
    task.check_shared({f"common.{k}": a for k, a in w.items()})


def test_fedkd(play):
    energy = 0.97
    task = play("fedkd", fedkd_energy=energy)
    start = assembled(method="fedkd")
    small = [k for k in start if k.startswith("common.")]
    shared, kept = {k: start[k] for k in small}, [dict(start) for _ in range(3)]
    shortened = set()

    def apart(teacher, student):
        p, q = (F.softmax(each, 1) for each in (teacher.detach(), student))
        return (p * (p / q).log()).sum(1).mean()

    def factored(update):
        if update.ndim < 2:
            return update
        u, s, v = np.linalg.svd(update, full_matrices=False)
        rank = next(k for k in range(1, len(s) + 1) if (s[:k] ** 2).sum() >= energy * (s**2).sum())
        if rank * sum(update.shape) >= update.size:
            return update
        shortened.add(rank)
        return u[:, :rank] * s[:rank] @ v[:rank]

    for index, clients in enumerate(task.rounds):
        sent = [{}] * 3
        for i in clients:
            x, y = tensors(task.train[i])
            w = {**kept[i], **shared}

            def loss(w, x=x, y=y):
                (z, out), (z_small, out_small) = ((f := features(v, x), head_of(v, f)) for v in (w, of_common(w)))
                errors = F.cross_entropy(out, y) + F.cross_entropy(out_small, y)
                far = ((z - z_small @ w["projection.weight"].T) ** 2).mean()
                return errors + (apart(out, out_small) + apart(out_small, out) + far) / errors.detach()

            for _ in range(EPOCHS):
                w = autograd(loss, w, start)
            kept[i], sent[i] = w, {k: shared[k] + factored(w[k] - shared[k]) for k in small}
        shared = task.mean(sent, clients, small)
        task.check(index, each(kept), common(of_common(shared)))
    assert shortened
    task.check_shared(shared)


def test_fedmrl(play, monkeypatch):
    def narrow(input_shape, num_classes):
        return BaseHeadModel(registry.named(flatten=nn.Flatten(), fc=nn.Linear(4, 2)), nn.Linear(2, num_classes))

    add_model(monkeypatch, "narrow", narrow)
    task = play("fedmrl", common_model="narrow")
    start = assembled(method="fedmrl", common_model="narrow")
    small = [k for k in start if k.startswith("common.")]
    models = [dict(start) for _ in range(3)]
    shared = {k: start[k] for k in small}

    def projected(w, x):
        z = torch.cat([x @ w[f"{of}base.fc.weight"].T + w[f"{of}base.fc.bias"] for of in ("common.", "")], 1)
        return z @ w["projection.weight"].T + w["projection.bias"]

    for index, clients in enumerate(task.rounds):
        for i in clients:
            x, y = tensors(task.train[i])
            models[i] = {**models[i], **shared}

            def loss(w, x=x, y=y):
                r = projected(w, x)
                nested = r[:, :2] @ w["common.head.weight"].T + w["common.head.bias"]
                return F.cross_entropy(head_of(w, r), y) + F.cross_entropy(nested, y)

            for _ in range(EPOCHS):
                models[i] = autograd(loss, models[i], start)
        shared = task.mean(models, clients, small)

        def predict(i, x, shared=shared):
            w = {k: torch.tensor(a) for k, a in {**models[i], **shared}.items()}
            return head_of(w, projected(w, torch.tensor(x))).numpy()

        task.check(index, predict)
    task.check_shared(shared)


def test_fedphp(play):
    task, weight = play("fedphp", fedphp_distillation=0.4, fedphp_trainings=2), 0.4
    inherited, times = [task.start] * 3, [0] * 3

    def train(i, w):
        x, y = task.train[i]
        taught = softmax(logits(inherited[i], x) / 4)
        target = (1 - weight) * np.eye(3)[y] + weight * taught if times[i] else np.eye(3)[y]
        for _ in range(EPOCHS):
            w = stepped(w, towards(w, x, target))
        mu = 0.9 * min(1, times[i] / 2)
        inherited[i] = {k: mu * inherited[i][k] + (1 - mu) * w[k] for k in w}
        times[i] += 1
        return w

    task.follow(train, tested=lambda i, w: inherited[i] if times[i] else w)


def test_apple(play):
    step, pull = 0.5, 0.2
    task = play("apple", apple_relation_learning_rate=step, apple_mu=pull, apple_pull_rounds=2)
    cores = [dict(task.start) for _ in range(3)]
    prior = np.array([len(y) for _, y in task.train]) / sum(len(y) for _, y in task.train)
    p, tested = [prior.copy() for _ in range(3)], [dict(task.start) for _ in range(3)]

    def mixed(i, cores):
        return {k: sum(p[i][j] * cores[j][k] for j in range(3)) for k in task.start}

    for index, clients in enumerate(task.rounds):
        trained = dict(enumerate(cores))
        weight = pull * 0.001 ** (index / 2) if index < 2 else 0
        for i in clients:
            here = list(cores)
            for _ in range(EPOCHS):
                g = gradient(mixed(i, here), *task.train[i])
                slope = np.array([sum((g[k] * w[k]).sum() for k in g) for w in here]) + weight * (p[i] - prior)
                here[i] = stepped(here[i], g, rate=RATE * p[i][i])
                p[i] = p[i] - step * slope
            trained[i], tested[i] = here[i], mixed(i, here)
        cores = [trained[j] for j in range(3)]
        task.check(index, each(tested))
        np.testing.assert_allclose(
            task.lines[index]["details"]["own-relation"], np.mean([p[i][i] for i in range(3)]), rtol=1e-5
        )


@pytest.mark.parametrize("longest", [50.0, 0.2])
def test_pfedhn(play, monkeypatch, longest):
    monkeypatch.setattr(pfedhn, "LONGEST", longest)
    step, momentum, decay = 0.05, pfedhn.MOMENTUM, pfedhn.WEIGHT_DECAY
    task = play("pfedhn", pfedhn_learning_rate=step)
    layers, sizes = len(task.start), [a.size for a in task.start.values()]
    assert layers == 4
    with torch.random.fork_rng():
        torch.manual_seed(int(generator(3, "rule hypernetwork", 0).integers(2**63 - 1)))
        network = pfedhn.Hypernetwork(3, sum(sizes))
    names = [name for name, _ in network.named_parameters()]
    phi = {name: array.detach().numpy().astype(np.float64) for name, array in network.named_parameters()}
    phi["last.weight"] *= 0
    phi["last.bias"] = np.concatenate([a.ravel() for a in task.start.values()])
    speed = dict.fromkeys(names, 0.0)

    def made(phi, i):
        z = phi["embeddings.weight"][i]
        for k in range(0, 7, 2):
            z = phi[f"layers.{k}.weight"] @ z + phi[f"layers.{k}.bias"]
            z = z if k == 6 else torch.relu(z) if isinstance(z, torch.Tensor) else np.maximum(z, 0)
        return phi["last.weight"] @ z + phi["last.bias"]

    def arrays(vector):
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        return {k: part.reshape(a.shape) for part, (k, a) in zip(parts, task.start.items(), strict=True)}

    for index, clients in enumerate(task.rounds):
        changes = {}
        for i in clients:
            w = arrays(made(phi, i))
            v = descend(w, task.train[i], EPOCHS, task.start)
            changes[i] = np.concatenate([(w[k] - v[k]).ravel() for k in w])
        for i, change in changes.items():
            phi_t = {k: torch.tensor(a, requires_grad=True) for k, a in phi.items()}
            made(phi_t, i).backward(torch.tensor(change))
            g = {k: a.grad.numpy() for k, a in phi_t.items()}
            norm = np.sqrt(sum((a**2).sum() for a in g.values()))
            for k in names:
                speed[k] = momentum * speed[k] + g[k] * min(1, longest / norm) + decay * phi[k]
                phi[k] = phi[k] - step * speed[k]
        task.check(index, lambda i, x: logits(arrays(made(phi, i)), x))
        assert task.lines[index]["details"]["apart"] == pytest.approx(
            np.std([made(phi, i) for i in range(3)], axis=0).mean(), rel=1e-3
        )


def test_fedselect(play):
    share, most = 0.4, 0.5
    task = play("fedselect", fedselect_share=share, fedselect_most=most)
    w = task.start
    last, mask = [dict(w) for _ in range(3)], [{k: np.zeros_like(a) for k, a in w.items()} for _ in range(3)]

    def merged(i, w):
        return {k: np.where(mask[i][k] == 1, last[i][k], w[k]) for k in w}

    for index, clients in enumerate(task.rounds):
        sent, marks = {}, {}
        for i in clients:
            before = v = merged(i, w)
            for trains in (mask[i], {k: 1 - m for k, m in mask[i].items()}):
                if any(m.any() for m in trains.values()):
                    for _ in range(EPOCHS):
                        g = gradient(v, *task.train[i])
                        v = stepped(v, {k: g[k] * trains[k] for k in v})
            sent[i], marks[i], last[i], mask[i] = v, mask[i], v, dict(mask[i])
            for k in (BASE[0], HEAD[0]):
                free, change = mask[i][k] == 0, abs(v[k] - before[k])
                if mask[i][k].mean() < most:
                    largest = np.sort(change[free])[::-1][int(share * free.sum()) - 1]
                    mask[i][k] = np.where(free & (change >= largest), 1, mask[i][k])
        for k in w:
            counts = sum(1 - marks[i][k] for i in clients)
            total = sum((1 - marks[i][k]) * sent[i][k] for i in clients)
            w = {**w, k: np.where(counts > 0, total / np.maximum(counts, 1), w[k])}
        task.check(index, lambda i, x, w=w: logits(merged(i, w), x), common(w))
    task.check_shared(w)


def test_fednh(play):
    smoothing = 0.6
    task = play("fednh", fednh_smoothing=smoothing)
    w = {k: a for k, a in assembled(method="fednh").items() if not k.startswith("personal.")}
    last, means = [None] * 3, HEAD[0]
    np.testing.assert_allclose(w[means] @ w[means].T, np.eye(3), atol=1e-6)

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def predict(w, x):
        return w["head.scale"] * unit(features(w, x)) @ w[means].T

    for index, clients in enumerate(task.rounds):
        sums = np.zeros((3, 5))
        for i in clients:
            (x, y), last[i] = task.train[i], w

            def loss(v, x=x, y=y):
                x, y = tensors((x, y))
                return F.cross_entropy(v["head.scale"] * F.normalize(features(v, x)) @ v[means].T, y)

            for _ in range(EPOCHS):
                last[i] = autograd(loss, last[i], [*BASE, "head.scale"])
            for c in set(y):
                z = unit(features(last[i], x[y == c])).mean(0, keepdims=True)
                sums[c] += (y == c).sum() * unit(z)[0]
        moved = unit(smoothing * w[means] + (1 - smoothing) * unit(sums))
        w = {**task.mean(last, clients, w, weights=[1] * len(clients)), means: moved}
        task.check_loss(index, "personalised", lambda i, x, w=w: predict(w if last[i] is None else last[i], x))
        task.check_loss(index, "global", lambda i, x, w=w: predict(w, x))
    task.check_shared(w)


def test_floco(play):
    count, after, radius = 3, 2, 0.3
    task = play("floco", floco_endpoints=count, floco_round=after, floco_radius=radius)
    w = {k: a for k, a in assembled(method="floco", floco_endpoints=count).items() if k != "head.position"}
    middle, ends, changes = np.full(count, 1 / count), "head.endpoints", {}
    places = [middle] * 3

    def at_point(w, position):
        return {**{k: w[k] for k in (*BASE, HEAD[1])}, HEAD[0]: np.tensordot(position, w[ends], 1)}

    def nearest(point, size):
        """Return the nearest point whose values are at least 0 and add up to ``size``, times 1/size."""
        low, high = point.min() - size, point.max()
        for _ in range(60):
            shift = (low + high) / 2
            low, high = (shift, high) if np.maximum(point - shift, 0).sum() > size else (low, shift)
        return np.maximum(point - low, 0) / np.maximum(point - low, 0).sum()

    def placed():
        rows = np.stack([changes[i].ravel() for i in sorted(changes)])
        rows = rows - rows.mean(0)
        values, vectors = np.linalg.eigh(rows @ rows.T)
        columns = [np.zeros(len(rows))] * count
        for place in range(min(count, len(rows))):
            v, length = vectors[:, -1 - place], np.sqrt(max(values[-1 - place], 0))
            columns[place] = length * v * np.sign(v[np.abs(v).argmax()])
        points = np.stack(columns, 1)
        best = np.inf, None
        for size in np.linspace(1e-4, 1, 1000):
            tried = [nearest(point, size) for point in points]
            pairs = [(a, b) for n, a in enumerate(tried) for b in tried[:n]]
            energy = sum(1 / max(((a - b) ** 2).sum(), 1e-8) for a, b in pairs)
            best = min(best, (energy, tried), key=lambda one: one[0])
        return best[1]

    for index, clients in enumerate(task.rounds):
        trained = {}
        for i in clients:
            rng, v = generator(3, "position", i, index + 1), w
            for _ in range(EPOCHS):
                if places[i] is middle:
                    position = rng.dirichlet(np.ones(count))
                else:
                    way = rng.uniform(-1, 1, count)
                    position = places[i] + rng.uniform(0, radius) * way / abs(way).sum()
                g = gradient(at_point(v, position), *task.train[i])
                v = {k: v[k] - RATE * (np.multiply.outer(position, g[HEAD[0]]) if k == ends else g[k]) for k in v}
            trained[i], changes[i] = v, v[ends] - w[ends]
        w = task.mean(trained, clients, w)
        if index + 1 == after:
            for i, position in zip(sorted(changes), placed(), strict=True):
                places[i] = position
        task.check(index, lambda i, x, w=w: logits(at_point(w, places[i]), x), common(at_point(w, middle)))
    assert places[clients[0]] is not middle
    task.check_shared(w)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_slices(play, method, scaled):
    settings = {f"{method}_scale": "always" if scaled else "auto"}
    task = play(method, client_models="1:@0.6,2:@0.2", **settings)
    w, sizes = task.start, [5, 3, 1]
    factors = [5 / size if scaled else 1 for size in sizes]
    present = [np.isin(np.arange(3), task.train[i][1]) for i in range(3)]
    assert not present[1].all()

    def cut(w, units):
        return {**{k: w[k][units] for k in BASE}, HEAD[0]: w[HEAD[0]][:, units], HEAD[1]: w[HEAD[1]]}

    def numbers(i, v, x):
        return factors[i] * features(v, x) @ v[HEAD[0]].T + v[HEAD[1]]

    for index, clients in enumerate(task.rounds):
        first = index if method == "fedrolex" else 0
        units = [np.sort((first + np.arange(size)) % 5) for size in sizes]  # the order does not count
        sums, counts = ({k: np.zeros_like(a) for k, a in w.items()} for _ in range(2))
        for i in clients:
            v = cut(w, units[i])

            def loss(v, i=i):
                x, y = tensors(task.train[i])
                return F.cross_entropy(torch.where(torch.tensor(present[i]), numbers(i, v, x), 0.0), y)

            for _ in range(EPOCHS):
                v = autograd(loss, v, [*BASE, *HEAD])
            rows = np.flatnonzero(present[i])
            where = {**dict.fromkeys(BASE, units[i]), HEAD[0]: np.ix_(rows, units[i]), HEAD[1]: rows}
            v = {**v, **{k: v[k][rows] for k in HEAD}}
            for k, place in where.items():
                sums[k][place] += v[k]
                counts[k][place] += 1
        w = {k: np.where(counts[k] > 0, sums[k] / np.maximum(counts[k], 1), w[k]) for k in w}
        task.check_loss(
            index, "personalised", lambda i, x, w=w, u=units: np.where(present[i], numbers(i, cut(w, u[i]), x), 0)
        )
        x, y = task.test[0]  # the only client with the whole model
        loss = -np.log(softmax(logits(w, x))[np.arange(len(y)), y]).mean()
        np.testing.assert_allclose(task.lines[index]["global"]["loss"], loss, rtol=1e-5)
    task.check_shared(w)
