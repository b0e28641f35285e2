"""What the options of a run do on a client, in the order in which it is done."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ..options.after_the_end import DeviceModelOption
from ..options.client_settings import ClientSettingsOption
from ..options.diagnostics import DiagnosticsOption
from ..options.evaluate_global import EvaluateGlobalOption, EvaluateTrainedOption
from ..options.keep_momentum import KeepMomentumOption
from ..options.privacy import PrivacyOption
from ..setup.config import Config
from .part import ClientPart


def parts_of(engine: Any, config: Config) -> list[ClientPart]:
    """Return the parts that see a client's training and tests."""
    made: list[type[ClientPart]] = []
    if config.wants(PrivacyOption):
        from ..options.privacy.client import ClientPrivacy

        made.append(ClientPrivacy)
    if config.wants(EvaluateGlobalOption):
        from ..options.evaluate_global.client import ClientMeanModel

        made.append(ClientMeanModel)
    if config.wants(DiagnosticsOption):
        from ..options.diagnostics.client import Movement

        made.append(Movement)
    if config.wants(KeepMomentumOption):
        from ..options.keep_momentum.client import KeptMomentum

        made.append(KeptMomentum)
    if config.wants(EvaluateTrainedOption):
        from ..options.evaluate_global.client import Trained

        made.append(Trained)
    if config.wants(DeviceModelOption):
        from ..options.after_the_end.kept_models import KeptModels

        made.append(KeptModels)
    return [part(engine) for part in made]


def of_client(config: Config, names: Sequence[str]) -> Callable[[Config, int], Config] | None:
    """Return what gives a client its own settings, if any client has some; ``names`` are those of the clients."""
    if not config.wants(ClientSettingsOption):
        return None
    from ..options.client_settings.client import own_settings

    return own_settings(config, names)
