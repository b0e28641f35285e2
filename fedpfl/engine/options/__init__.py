"""The options of a run on the server, in the order in which they act."""

from __future__ import annotations

from ...core import references, user_code
from ...core.errors import ConfigError
from ...results.run_folder import RunFolder
from ...rules.mean import Mean
from ...setup.config import Config
from ...setup.options.after_the_end import BestRoundOption, PersonaliseOption
from ...setup.options.availability import AvailabilityOption
from ...setup.options.client_settings import WEIGHT, ClientSettingsOption, refused, tables
from ...setup.options.diagnostics import DiagnosticsOption
from ...setup.options.evaluate_global import EvaluateGlobalOption
from ...setup.options.listeners import ListenersSettings
from ...setup.options.privacy import PrivacyOption
from ...setup.options.tests_at_server import ServerTestOption
from ..client_sampling import ClientSampling
from ..listener import Listener, Server
from ..transport import Members, Transport
from .after_the_end import personalise
from .availability import Availability
from .best_round import BestRound
from .diagnostics import Diagnostics
from .evaluate_global import mean_model
from .norm_limit import limit_of
from .privacy import server_privacy
from .tests_at_server import tests_at_server


def instead_of_rounds(transport: Transport, config: Config) -> RunFolder | None:
    """Do what a run does in the place of its rounds, if it does; return its folder."""
    return personalise(transport, config) if config.wants(PersonaliseOption) else None


def followers(config: Config, folder: RunFolder) -> list[Listener]:
    """Return the listeners that see a run from before its first message."""
    listeners = [_named(text) for text in config.of(ListenersSettings).names]
    # With test-at = start a test is of the models before the round.
    best = config.wants(BestRoundOption) and config.run.test_at != "start"
    return [BestRound(config, folder), *listeners] if best else listeners


def _named(text: str) -> Listener:
    """Return the listener of the user's that a setting names; a class is called without arguments."""
    listener = user_code.find("listeners", text)
    if isinstance(listener, type) and issubclass(listener, Listener):
        listener = user_code.call("listeners", text, listener, {})
    if not isinstance(listener, Listener):
        message = f"is {references.article(listener)}, and must be a subclass of fedpfl.Listener"
        raise ConfigError("listeners", text, message)
    return listener


def sampling(config: Config, folder: RunFolder, transport: Members) -> ClientSampling:
    """Return the sampling, which decides who takes part."""
    if config.wants(AvailabilityOption):
        return Availability(config, folder, transport)
    return ClientSampling(config.run, transport.least)


def listeners_of(server: Server) -> list[Listener]:
    """Return the listeners of a run."""
    config = server.config
    listeners: list[Listener | None] = [limit_of(config, server.extras)]
    if config.wants(PrivacyOption):
        listeners.append(server_privacy(config, server.rule, server.folder.task()["state_key"]))
    if config.wants(EvaluateGlobalOption):
        listeners.append(mean_model(server))
    if config.wants(DiagnosticsOption):
        listeners.append(Diagnostics())
    if config.wants(ServerTestOption):
        listeners.append(tests_at_server(server))
    if config.wants(ClientSettingsOption):
        _set_weights(server)
    return [listener for listener in listeners if listener is not None]


def _set_weights(server: Server) -> None:
    """Give the rule the clients' own weights; ``ConfigError`` for a client that there is not."""
    rule = server.rule
    texts: dict[int, str] = {}
    for client, table in tables(server.config).items():
        try:
            number = server.folder.client_number(client)
        except ConfigError as error:
            raise refused(client, error.message) from error
        if number not in rule.clients:
            raise refused(client, f"is no client; they are 0 … {len(rule.clients) - 1}")
        if number in texts:
            raise refused(client, f"is the same client as {texts[number]}")
        texts[number] = client
        if table.get(WEIGHT, 1) != 1:
            if not isinstance(rule, Mean) or type(rule).weight is not Mean.weight:
                why = f"weight: must be 1 for {server.config.method.name}, whose rule is more than a mean"
                raise refused(client, why)
            if not rule.layout.size and not server.extras.names("server"):
                raise refused(
                    client, f"weight: must be 1 for {server.config.method.name}, of which nothing is combined"
                )
            rule.own_weights[number] = float(table[WEIGHT])
