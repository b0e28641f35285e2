"""Settings of single clients: how each trains, and how much it weighs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError, did_you_mean
from ...core.option import Option
from ...core.settings import by_key, items, parse, setting
from ...training.settings import TrainingSettings
from .privacy import PrivacySettings
from .robust import RobustSettings

KEY = "client-settings"
# Settings of training that a client can have for itself.
UNLIKE = tuple(key for key, field in by_key(TrainingSettings).items() if "client" in field.metadata["tags"])


@dataclass(frozen=True)
class ClientSettings:
    """The clients that are unlike others."""

    client_settings: str = setting(
        "",
        "Settings of single clients: local-epochs, local-steps, batch-size, learning-rate, momentum, weight-decay, "
        "clip-norm, and weight, a factor of what the client weighs in the mean.",
        form="a table for each client, by its name in the data or its number, #3 if names are numbers: {anna = "
        "{local-epochs = 2}, 3 = {weight = 0.5}}",
    )


class ClientSettingsOption(Option):
    """Has single clients train in another way, and weigh more or less in the mean."""

    title = "Unlike clients"
    Settings = ClientSettings
    at_server = True

    def check(self, config: Any) -> None:
        """Refuse what one client cannot have."""
        if self.wanted(config):
            check(config)


WEIGHT, MAX_WEIGHT = "weight", 1e6
ALLOWED = (*UNLIKE, WEIGHT)


def tables(config: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of each client, by its number or name."""
    text = config.of(ClientSettings).client_settings
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(table, dict) for table in parsed.values()):
        allowed = (
            "must be a table of settings for each client, and no text: {anna = {local-epochs = 2}} in TOML, "
            '{"anna": {"local_epochs": 2}} in Python'
        )
        raise ConfigError(KEY, text, allowed)
    return parsed


def check(config: Any) -> None:
    """Raise ``ConfigError`` for what one client cannot have, and for weights that a sum with noise does not allow."""
    privacy, robust = config.of(PrivacySettings), config.of(RobustSettings)
    for client, table in tables(config).items():
        for key in table:
            if key not in ALLOWED:
                hint = did_you_mean(key, ALLOWED)
                raise refused(client, f"{key} of client {client}: must be one of {', '.join(ALLOWED)}{hint}")
        try:
            parse(type(config.training), {**dict(items(config.training)), **table}).check(config.method)
        except ConfigError as error:
            raise refused(client, str(error)) from error
        weight = table.get(WEIGHT, 1)
        if type(weight) not in (int, float) or not 0 <= weight <= MAX_WEIGHT:
            raise refused(client, f"weight = {weight!r}: must be a number of at least 0")
        if weight != 1 and privacy.on and privacy.dp_where == "server":
            raise refused(client, "weight: must be 1 with dp-where = server: all weigh alike")
        if weight != 1 and robust.weighs_alike:
            why = f"weight: must be 1 with robust-aggregation = {robust.robust_aggregation}: all weigh alike"
            raise refused(client, why)


def refused(client: str, why: str) -> ConfigError:
    """Return the error for a client's settings."""
    return ConfigError(KEY, client, why)
