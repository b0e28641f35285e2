"""Settings of training that single clients have, and what they weigh in the mean."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Callable, Sequence

from ...core.name_lists import client_in
from ...setup.config import Config
from ...setup.options.client_settings import UNLIKE, tables


def own_settings(config: Config, names: Sequence[str]) -> Callable[[Config, int], Config]:
    """Return a function for the settings of a client; ``names`` are those of the clients in the data, if any."""
    every = {client_in(text, names): table for text, table in tables(config).items()}
    configs: dict[int, Config] = {}

    def settings_of(usual: Config, client: int) -> Config:
        if client not in configs:
            table = every.get(client, {})
            values = {key.replace("-", "_"): value for key, value in table.items() if key in UNLIKE}
            configs[client] = _with_training(usual, values) if values else usual
        return configs[client]

    return settings_of


def _with_training(config: Config, values: dict[str, Any]) -> Config:
    # The method stays the one that has built the model.
    method = copy.copy(config.method)
    method.training = replace(config.training, **values)
    method.check()
    return replace(config, training=method.training, method=method)
