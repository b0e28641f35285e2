"""Settings of training that single clients have, and what they weigh in the mean."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any, Callable, Sequence

from ...core.errors import ConfigError, did_you_mean
from ...core.settings import parse
from ...setup.config import Config
from ..privacy import PrivacySettings
from . import UNLIKE, ClientSettings

WEIGHT, MAX_WEIGHT = "weight", 1e6
ALLOWED = (*UNLIKE, WEIGHT)


def tables(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings of each client, by its number or name."""
    text = config.of(ClientSettings).client_settings
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(own, dict) for own in found.values()):
        allowed = "must be a table of settings for each client: {anna = {local-epochs = 2}}"
        raise ConfigError("client-settings", text, allowed)
    return found


def check(config: Config) -> None:
    """Raise ``ConfigError`` for what one client cannot have, and for weights that a sum with noise does not allow."""
    privacy = config.of(PrivacySettings)
    for client, own in tables(config).items():
        for key in own:
            if key not in ALLOWED:
                hint = did_you_mean(key, ALLOWED)
                raise refused(client, f"{key} of client {client}: must be one of {', '.join(ALLOWED)}{hint}")
        try:
            parse(type(config.training), own)
        except ConfigError as error:
            raise refused(client, str(error)) from error
        weight = own.get(WEIGHT, 1)
        if type(weight) not in (int, float) or not 0 <= weight <= MAX_WEIGHT:
            raise refused(client, f"weight = {weight!r}: must be a number of at least 0")
        if weight != 1 and privacy.on and privacy.dp_where == "server":
            raise refused(client, "weight: must be 1 with dp-where = server: all weigh alike")


def refused(client: str, why: str) -> ConfigError:
    """Return the error for a client's settings."""
    return ConfigError("client-settings", client, why)


def own_settings(config: Config, names: Sequence[str]) -> Callable[[Config, int], Config]:
    """Return what gives a client its settings; ``names`` are those of the clients in the data, if they have any."""
    every = tables(config)
    made: dict[int, Config] = {}

    def of(usual: Config, client: int) -> Config:
        if client not in made:
            name = names[client] if client < len(names) else ""
            # A name of the data comes before a number.
            own = every.get(name, {} if str(client) in names else every.get(str(client), {}))
            values = {key.replace("-", "_"): value for key, value in own.items() if key in UNLIKE}
            made[client] = _with_training(usual, values) if values else usual
        return made[client]

    return of


def _with_training(config: Config, values: dict[str, Any]) -> Config:
    # The method stays the one that has built the model.
    method = copy.copy(config.method)
    method.training = replace(config.training, **values)
    method.check()
    return replace(config, training=method.training, method=method)
