"""The options of a run on a client, in the order in which they act."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ...setup.config import Config
from ...setup.options.after_the_end import DeviceModelOption
from ...setup.options.client_settings import ClientSettingsOption
from ...setup.options.diagnostics import DiagnosticsOption
from ...setup.options.evaluate_global import EvaluateGlobalOption, EvaluateTrainedOption
from ...setup.options.keep_momentum import KeepMomentumOption
from ...setup.options.privacy import PrivacyOption
from ..option_hooks import ClientPart


def parts_of(engine: Any, config: Config) -> list[ClientPart]:
    """Return the parts that see a client's training and tests."""
    parts: list[type[ClientPart]] = []
    if config.wants(PrivacyOption):
        from .privacy import ClientPrivacy

        parts.append(ClientPrivacy)
    if config.wants(EvaluateGlobalOption):
        from .evaluate_global import ClientMeanModel

        parts.append(ClientMeanModel)
    if config.wants(DiagnosticsOption):
        from .diagnostics import PersonalMovement

        parts.append(PersonalMovement)
    if config.wants(KeepMomentumOption):
        from .keep_momentum import KeptMomentum

        parts.append(KeptMomentum)
    if config.wants(EvaluateTrainedOption):
        from .evaluate_global import TrainedModelTest

        parts.append(TrainedModelTest)
    if config.wants(DeviceModelOption):
        from .device_models import KeptModels

        parts.append(KeptModels)
    return [part(engine) for part in parts]


def of_client(config: Config, names: Sequence[str]) -> Callable[[Config, int], Config] | None:
    """Return the settings of a client, if any client has some; ``names`` are those of the clients."""
    if not config.wants(ClientSettingsOption):
        return None
    from .client_settings import own_settings

    return own_settings(config, names)
