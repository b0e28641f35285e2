"""Tests of the global model on a test set that stays at the server (``test-on = "server"``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ...client.scores import metrics_of
from ...core import metrics
from ...core.errors import ConfigError
from ...core.process import computing
from ...core.rng import torch_seed
from ...core.samples import Samples
from ...data.federation import NONE, FederatedData, federated_data
from ...data.reading import load_once
from ...methods.base import common_model
from ...results.round_record import Round
from ...rules import Rule
from ...training.loop import evaluate
from ...training.measure import find
from ..listener import Listener, Server


class ServerTest(Listener):
    """Tests what is shared after each round in which clients are tested."""

    def __init__(self, server: Server, samples: Samples) -> None:
        self._server, self._samples = server, samples
        self._measures = find(server.config.run.metrics)

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Test, and have it recorded as the global model's."""
        config, agreed = self._server.config, self._server.agreed
        if not config.run.evaluates_in(done.number):
            return False
        agreed.sharing.set_shared(rule.layout.unpack(rule.layout.pack(rule.shared, config.run.wire_dtype)))
        model = agreed.model.eval()
        forward = common_model(config.method, model)
        assert forward is not None  # checked before round 1
        with computing(1), torch.random.fork_rng(devices=[]):  # one thread: the same bits on any number of cores
            torch.manual_seed(torch_seed(config.run.seed, "server test", done.number))
            score = evaluate(forward, self._samples, config.training.labels, self._measures)
        scores = {name: metrics.combined(name, [pair]) for name, pair in score.metrics.items()}
        sent = metrics_of("global", score)
        if score.samples:  # one sample has no R²
            done.at_server = {
                "accuracy": score.correct / score.samples, "loss": sent["global-loss-sum"] / score.samples,
                "samples": score.samples, **{name: value for name, value in scores.items() if value is not None},
            }  # fmt: skip
        return False


def tests_at_server(server: Server) -> ServerTest:
    """Return the listener; ``ConfigError`` without a global model, or without a test set that all clients share."""
    config, agreed = server.config, server.agreed
    if not server.rule.one_model or common_model(config.method, agreed.model) is None:
        message = f"needs a global model, and {config.method.name} has none with these settings"
        raise ConfigError("test-on", "server", message)
    data = load_once(config.data, config.run.seed)
    samples = FederatedData.of_client(data, replace(config.data, standardize=NONE), 0, config.run.seed).test(0)
    if config.data.standardize != NONE:
        # Scaled by the clients' training samples, as their own inputs are, and not by all samples.
        scaling = federated_data(config.data, len(agreed.classes), config.run.seed).scaling(0)
        samples = samples._replace(x=torch.from_numpy(scaling.applied(samples.x.numpy())))
    if (data.input_shape, data.num_classes) != (agreed.input_shape, max(agreed.classes)):
        message = (
            f"the server's test set has samples {data.input_shape} of {data.num_classes} classes, clients have others"
        )
        raise ConfigError("test-on", "server", message)
    return ServerTest(server, samples)
