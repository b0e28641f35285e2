"""The options of a run on the server, in the order in which they act."""

from __future__ import annotations

from ...results.run_folder import RunFolder
from ...setup.config import Config
from ...setup.options.after_the_end import BestRoundOption, PersonaliseOption
from ...setup.options.availability import AvailabilityOption
from ...setup.options.client_settings import ClientSettingsOption
from ...setup.options.diagnostics import DiagnosticsOption
from ...setup.options.evaluate_global import EvaluateGlobalOption
from ...setup.options.listeners import ListenersOption
from ...setup.options.privacy import PrivacyOption
from ...setup.options.tests_at_server import ServerTestOption
from ..client_sampling import ClientSampling
from ..listener import Listener, Server
from ..transport import Members, Transport
from .norm_limit import norm_limit


def instead_of_rounds(transport: Transport, config: Config) -> RunFolder | None:
    """Do what a run does in the place of its rounds, if it does; return its folder."""
    if not config.wants(PersonaliseOption):
        return None
    from .after_the_end import personalise

    return personalise(transport, config)


def followers(config: Config, folder: RunFolder) -> list[Listener]:
    """Return the listeners that see a run from before its first message."""
    listeners: list[Listener] = []
    if config.wants(BestRoundOption):
        from .best_round import best_round

        listeners += best_round(config, folder)
    if config.wants(ListenersOption):
        from .listeners import named_listeners

        listeners += named_listeners(config, folder)
    return listeners


def sampling(config: Config, folder: RunFolder, transport: Members) -> ClientSampling:
    """Return the sampling, which decides who takes part."""
    if config.wants(AvailabilityOption):
        from .availability import Availability

        return Availability(config, folder, transport)
    return ClientSampling(config.run, transport.least)


def listeners_of(server: Server) -> list[Listener]:
    """Return the listeners of a run."""
    config = server.config
    listeners: list[Listener | None] = [norm_limit(server)]
    if config.wants(PrivacyOption):
        from .privacy import server_privacy

        listeners.append(server_privacy(config, server.rule, server.folder.task()["state_key"]))
    if config.wants(EvaluateGlobalOption):
        from .evaluate_global import mean_model

        listeners.append(mean_model(server))
    if config.wants(DiagnosticsOption):
        from .diagnostics import diagnostics

        listeners.append(diagnostics(server))
    if config.wants(ServerTestOption):
        from .tests_at_server import tests_at_server

        listeners.append(tests_at_server(server))
    if config.wants(ClientSettingsOption):
        from .client_settings import own_weights

        own_weights(server)
    return [listener for listener in listeners if listener is not None]
