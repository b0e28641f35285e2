"""`fit`: the body of a ClientApp's functions for methods with phases, with what Flower's examples hand it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from flower_apps import FEATURES, AppGrid, Net, accuracy, loader, samples
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

import fedpfl
from fedpfl import strategies
from fedpfl.strategies import fit, keep


def fitting(data=None, mods=(), model=lambda: Net, functions=None, **options):
    """Return an app whose functions are `fit`; ``data`` makes the loader of a context, ``functions`` are other ones."""
    app = ClientApp(mods=list(mods))
    data = data or (lambda context: loader(context.node_config["partition-id"]))
    functions = functions or {}

    @app.query()
    def query(message, context):
        return fit(message, context, model=model(), data=data(context), **options)

    def train(message, context):
        return fit(message, context, model=model(), data=data(context), **options)

    def evaluate(message, context):
        return fit(message, context, model=model(), data=(data(context), data(context)), **options)

    app.train()(functions.get("train", train))
    app.evaluate()(functions.get("evaluate", evaluate))
    return app


def trained(app, strategy="FedPer", rounds=1, **settings):
    made = getattr(strategies, strategy)(model=Net, **{"node_timeout": 1.0, **settings})
    return made.start(AppGrid(app), ArrayRecord(), num_rounds=rounds)


def same(one, other):
    assert [*one.arrays] == [*other.arrays]
    for name in one.arrays:
        np.testing.assert_array_equal(one.arrays[name].numpy(), other.arrays[name].numpy())


PHASES = {"FedRep": {"p_epochs": 1}, "Ditto": {"p_epochs": 1}, "FedDecomp": {"lora_epochs": 1}}


# Two parts of a model, two models, low-rank parts, channels; test_fedpfl_clients.py has the app with others.
@pytest.mark.parametrize("strategy", ["FedRep", "Ditto", "FedDecomp", "FedFac", "FedBABU"])
def test_fit_and_the_app_that_is_nothing_else_make_the_same_bits(strategy, tmp_path):
    settings = {"local_epochs": 2, "learning_rate": 0.1, **PHASES.get(strategy, {})}
    result = trained(fitting(mods=[keep(tmp_path)]), strategy, 2, **settings)
    data = lambda context: (loader(context.node_config["partition-id"]),) * 2  # noqa: E731
    same(result, trained(strategies.client_app(model=Net, data=data), strategy, 2, **settings))
    assert result.evaluate_metrics_clientapp[2]["personalised-accuracy"] > 0.3
    assert any(tmp_path.glob("*/client-*")) or strategy == "FedBABU"


def test_fit_answers_functions_with_names_of_ones_own():
    class Named(strategies.FedRep):
        def configure_train(self, *rest):
            messages = [*super().configure_train(*rest)]
            for message in messages:
                message.metadata.message_type = "train.warm"
            return messages

    app = fitting()
    app.train("warm")(lambda message, context: fit(message, context, model=Net, data=loader(context.node_id - 100)))
    result = Named(model=Net, fraction_evaluate=0.0).start(AppGrid(app), ArrayRecord(), num_rounds=2)
    same(result, trained(fitting(), "FedRep", 2, fraction_evaluate=0.0))


@pytest.mark.parametrize("name", ["learning-rate", "learning_rate", "fedprox_mu"])
def test_a_setting_that_a_hook_writes_into_a_message_is_refused(name, caplog):
    class Faster(strategies.FedProx):
        def configure_train(self, *rest):
            for message in super().configure_train(*rest):
                message.content["config"][name] = 0.5
                yield message

    with pytest.raises(fedpfl.FedpflError):
        Faster(model=Net).start(AppGrid(fitting()), ArrayRecord(), num_rounds=1)
    assert f"{name} = 0.5: has no effect in a message: give it to the strategy" in caplog.text


@pytest.mark.parametrize("name", ["train-loss", "personalised-accuracy"])
def test_replies_of_fit_cannot_count_by_another_of_its_numbers(name, caplog):
    strategy = strategies.FedAvg(model=Net, weighted_by_key=name)
    with contextlib.suppress(fedpfl.FedpflError):
        strategy.start(AppGrid(fitting()), ArrayRecord(), num_rounds=1)
    assert (
        f"weighted_by_key = '{name}': is another number of fit's, whose replies count by their samples" in caplog.text
    )


class Pictures(torch.utils.data.Dataset):
    """Samples as dictionaries, as flwr-datasets gives them; with ``noise`` others at each reading."""

    def __init__(self, client, noise=0.0, named=("img", "label"), more=()):
        self.x, self.y = map(torch.from_numpy, samples(client))
        self.noise, self.named, self.more = noise, named, more

    def __len__(self):
        return len(self.y)

    def __getitem__(self, place):
        x = self.x[place] + self.noise * torch.randn(FEATURES) if self.noise else self.x[place]
        return dict(zip(self.named, (x, self.y[place], *self.more), strict=True))


def of_pictures(batch_size=10, **options):
    def data(context):
        dataset = Pictures(context.node_config["partition-id"], **options)
        return torch.utils.data.DataLoader(dataset, batch_size=batch_size)

    return data


def test_batches_may_be_dictionaries_and_have_the_size_of_the_loader(caplog):
    settings = {"local_epochs": 2, "fraction_evaluate": 0.0}
    plain = trained(fitting(), **settings)
    same(plain, trained(fitting(of_pictures()), **settings))
    same(trained(fitting(of_pictures(7)), batch_size=10, last_batch="drop", **settings), plain)  # the strategy's counts
    seven = trained(fitting(of_pictures(7)), **settings)
    assert not np.array_equal(seven.arrays["fc1.weight"].numpy(), plain.arrays["fc1.weight"].numpy())
    same(seven, trained(fitting(), batch_size=7, last_batch="keep", **settings))

    def of_batch_sampler(context):
        dataset = Pictures(context.node_config["partition-id"])
        batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(dataset), 7, False)
        return torch.utils.data.DataLoader(dataset, batch_sampler=batches)

    def of_stream(context):
        samples = [
            tuple(one.values()) for one in map(Pictures(context.node_config["partition-id"]).__getitem__, range(40))
        ]
        stream = type("Stream", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter(samples)})()
        return torch.utils.data.DataLoader(stream, batch_size=7)

    same(seven, trained(fitting(of_batch_sampler), **settings))
    same(seven, trained(fitting(of_stream), **settings))
    assert "not the loader's" not in caplog.text
    nested = of_pictures(named=("img", "label", "meta"), more=({"id": 7},))
    same(plain, trained(fitting(nested, keys=("img", "label")), **settings))
    with pytest.raises(fedpfl.FedpflError, match="x of sample 0 is a dict of"):
        trained(fitting(nested, keys=("meta", "label")), **settings)


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        (lambda data: {"sampler": torch.utils.data.SubsetRandomSampler(range(20))}, "SubsetRandomSampler drew once"),
        (
            lambda data: {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * len(data), 40)},
            "WeightedRandomSampler drew once",
        ),
        (
            lambda data: {"shuffle": True, "collate_fn": lambda items: torch.utils.data.default_collate(items)},
            "made once by collate_fn",
        ),
    ],
)
def test_what_samplers_of_a_loader_draw_follows_from_the_seed_and_is_told(sampled, said, caplog):
    """Also where a node's process begins with random numbers of its own."""

    def data(context):
        torch.seed()
        dataset = Pictures(context.node_config["partition-id"])
        return torch.utils.data.DataLoader(dataset, 10, **sampled(dataset))

    settings = {"local_epochs": 1, "fraction_evaluate": 0.0}
    same(trained(fitting(data), **settings), trained(fitting(data), **settings))
    assert caplog.text.count(said) == 2 * 3, "once for each run and node, not for each message"


def test_two_entries_of_larger_samples_are_named():
    settings = {"local_epochs": 1, "fraction_evaluate": 0.0}
    numbered = of_pictures(named=("img", "label", "id"), more=(7,))
    same(trained(fitting(numbered, keys=("img", "label")), **settings), trained(fitting(), **settings))
    for keys in ((), ("img", "class")):
        with pytest.raises(fedpfl.FedpflError, match="must name x and y among the entries of a sample: img, label, id"):
            trained(fitting(numbered, keys=keys), **settings)


@pytest.mark.parametrize("strategy", ["FedPer", "Ditto"])
def test_a_loss_of_ones_own(strategy):
    def smooth(prediction, target):
        return torch.nn.functional.cross_entropy(prediction, target, label_smoothing=0.5)

    settings = {"local_epochs": 1, "fraction_evaluate": 0.0}
    result = trained(fitting(loss=smooth), strategy, **settings)
    same(result, trained(fitting(loss=torch.nn.CrossEntropyLoss(label_smoothing=0.5)), strategy, **settings))
    plain = trained(fitting(), strategy, **settings)
    assert not np.array_equal(result.arrays["fc1.weight"].numpy(), plain.arrays["fc1.weight"].numpy())


def test_random_transforms_draw_anew_in_each_epoch():
    shown = []

    class Seen(Net):
        def forward(self, x):
            if self.training:
                shown.append(x.detach().clone())
            return super().forward(x)

    trained(fitting(of_pictures(40, noise=1.0), model=lambda: Seen), local_epochs=2, fraction_evaluate=0.0)
    first, second = [batch.sort(0).values for batch in shown if len(batch) == 40][:2]
    assert first.shape == second.shape == (40, FEATURES) and not torch.allclose(first, second)


def test_an_optimiser_and_a_scheduler_of_ones_own():
    def falling(params, lr):
        optimizer = torch.optim.SGD(params, lr=10 * lr)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: steps.append(step) or 0.1)

    steps = []
    settings = {"fraction_evaluate": 0.0, "learning_rate": 0.1, "local_epochs": 2}
    plain = trained(fitting(), momentum=0.0, **settings)
    ours = fitting(optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr))
    same(trained(ours, node_timeout=60.0, **settings), plain)  # torch's first optimiser imports its compiler
    same(trained(fitting(optimizer=falling), **settings), plain)
    assert max(steps) == 8, "a step after each of two epochs of four batches"
    with pytest.raises(fedpfl.FedpflError, match=r"optimizer = .*: returns a float; it must return an optim"):
        trained(fitting(optimizer=lambda lr: lr), **settings)
    with pytest.raises(fedpfl.FedpflError, match=r"momentum = 0.5: is not used by falling$"):
        trained(fitting(optimizer=falling), momentum=0.5, **settings)


def test_metrics_of_ones_own_are_listed_with_names():
    def right(outputs, y):
        return float((outputs.argmax(1) == y).float().mean())

    result = trained(fitting(metrics=["f1-macro", right]), "FedPer")
    means = result.evaluate_metrics_clientapp[1]
    assert means["personalised-right"] == pytest.approx(means["personalised-accuracy"])
    assert "personalised-f1-macro" in means


def test_several_starts_are_one_run_whose_learning_rate_falls_over_all_rounds():
    def ended(starts, rounds, **settings):
        strategy, arrays = (
            strategies.FedPer(
                model=Net, local_epochs=1, fraction_evaluate=0.0, learning_rate_schedule="cosine", **settings
            ),
            ArrayRecord(),
        )
        for _ in range(starts):
            result = strategy.start(grid, arrays, num_rounds=rounds)
            arrays = result.arrays
        return result

    grid = AppGrid(fitting())
    whole = ended(1, 3)
    grid = AppGrid(fitting())
    same(whole, ended(3, 1, num_server_rounds=3))
    with pytest.raises(fedpfl.ConfigError, match="which one start of several does not tell: give num_server_rounds="):
        ended(2, 1)


def test_a_module_holds_what_predicts_afterwards():
    seen = []

    def train(message, context):
        model, batches = Net(), loader(context.node_config["partition-id"])
        reply = fit(message, context, model=model, data=batches)
        seen.append(accuracy(model, batches))
        return reply

    trained(fitting(functions={"train": train}), "Ditto", 2, local_epochs=8, learning_rate=0.1, fraction_evaluate=0.0)
    assert min(seen[-3:]) > 0.8


def test_nodes_with_a_path_get_their_numbers_from_the_server():
    def data(context):
        return loader(int(str(context.node_config["data-path"])[-1]))

    grid = AppGrid(fitting(data))
    for number, context in enumerate(grid.contexts):
        context.node_config = {"data-path": f"/data/{number}"}
    result = strategies.FedRep(model=Net, num_clients=3, node_timeout=5.0).start(grid, ArrayRecord(), num_rounds=2)
    same(result, trained(fitting(), "FedRep", 2))
    with pytest.raises(fedpfl.FedpflError, match="or the strategy num_clients=, the number of nodes"):
        strategies.FedRep(model=Net, node_timeout=1.0).start(grid, ArrayRecord())


@pytest.mark.parametrize(
    ("strategy", "error"),
    [("FedBABU", "must be a pair .train, test.: fedbabu adapts to them"), ("KNNPer", "must be a pair .train, test.")],
)
def test_a_test_needs_the_samples_that_the_method_adapts_to(strategy, error, caplog):
    def evaluate(message, context):
        return fit(message, context, model=Net, data=loader(context.node_config["partition-id"]))

    assert not trained(fitting(functions={"evaluate": evaluate}), strategy).evaluate_metrics_clientapp
    assert error.replace(".train, test.", "(train, test)") in caplog.text


def test_functions_without_fit_are_refused_where_the_strategy_has_the_model(caplog):
    def train(message, context):
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    app = fitting(mods=[keep()], functions={"train": train})
    with pytest.raises(fedpfl.FedpflError, match="no round counted"):
        trained(app, "FedRep", fraction_evaluate=0.0)
    assert "the function has to return fit(message, context, …)" in caplog.text


class NextToken(torch.nn.Module):
    """Predict each token from the one before."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = torch.nn.Embedding(7, 8), torch.nn.Linear(8, 7)

    def forward(self, x):
        return self.out(self.embedding(x))


def test_a_language_model_trains_in_flowers_loop():
    def texts(context):
        step = 1 + context.node_config["partition-id"]
        x = torch.from_numpy(np.arange(24)[:, None] + step * np.arange(10)) % 5  # the two highest tokens are nobody's
        return (torch.utils.data.TensorDataset(x, torch.where(x == 3, -100, x)),) * 2

    made = strategies.FedPer(
        model=NextToken, node_timeout=1.0, loss="next-token", metrics="perplexity", local_epochs=20, learning_rate=0.2
    )
    result = made.start(
        AppGrid(strategies.client_app(model=NextToken, data=texts)), ArrayRecord(), num_rounds=2
    )  # fmt: skip
    tested = result.evaluate_metrics_clientapp[2]
    assert 1 <= tested["personalised-perplexity"] < 2 and tested["personalised-accuracy"] > 0.8
