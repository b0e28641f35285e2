"""The options of a run on a client, in the order in which they act."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

from ...core.name_lists import client_in
from ...core.option import Option
from ...setup.config import Config
from ...setup.options.after_the_end import DeviceModelOption
from ...setup.options.client_settings import UNLIKE, ClientSettingsOption, tables
from ...setup.options.diagnostics import DiagnosticsOption
from ...setup.options.evaluate_global import EvaluateGlobalOption, EvaluateTrainedOption
from ...setup.options.keep_momentum import KeepMomentumOption
from ...setup.options.privacy import PrivacyOption
from ..option_hooks import ClientPart
from .device_models import KeptModels
from .diagnostics import PersonalMovement
from .evaluate_global import ClientMeanModel, TrainedModelTest
from .keep_momentum import KeptMomentum
from .privacy import ClientPrivacy

# What sees a client's training and tests.
PARTS: Mapping[type[Option], type[ClientPart]] = {
    PrivacyOption: ClientPrivacy,
    EvaluateGlobalOption: ClientMeanModel,
    DiagnosticsOption: PersonalMovement,
    KeepMomentumOption: KeptMomentum,
    EvaluateTrainedOption: TrainedModelTest,
    DeviceModelOption: KeptModels,
}


def parts_of(engine: Any, config: Config) -> list[ClientPart]:
    """Return the parts of the options that a run wants."""
    return [part(engine) for option, part in PARTS.items() if config.wants(option)]


def of_client(config: Config, names: Sequence[str]) -> Callable[[Config, int], Config] | None:
    """Return a function for the settings of a client, if any client has some; ``names`` are those of the clients."""
    if not config.wants(ClientSettingsOption):
        return None
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
