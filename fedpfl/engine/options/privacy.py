"""The server's part of differential privacy: noise on the sum, and how much privacy each client has spent."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, getLogger
from pathlib import Path

import numpy as np

from ...client.options.privacy import gaussian, noise_key
from ...core.errors import ConfigError
from ...core.extra_arrays import SERVER
from ...core.layout import rounded
from ...core.payload import Payload
from ...core.privacy_accounting import epsilon
from ...core.server_view import Client
from ...core.vectors import clipped
from ...results.round_record import Round
from ...rules import Rule
from ...setup.config import Config
from ...setup.options.privacy import PrivacySettings
from ..listener import Listener

logger = getLogger("flwr")


class ServerPrivacy(Listener):
    """Counts what each client has released; at the server it also bounds replies and has the rule add noise.

    The server's secret is kept in ``folder``. Arrays that clients send alongside the shared vector are a release even
    where that is empty (``sends_besides``).
    """

    def __init__(
        self,
        settings: PrivacySettings,
        clients: Iterable[int],
        seed: int,
        folder: Path,
        wire_dtype: str,
        sends_besides: bool = False,
        rounds: int = 0,
    ) -> None:
        self.settings = settings
        self.sends_besides, self._rounds = sends_besides, rounds
        self._releases = dict.fromkeys(clients, 0)
        self._seed, self._folder, self._wire_dtype = seed, folder, wire_dtype

    @property
    def at_server(self) -> bool:
        """Tell whether the server adds the noise."""
        return self.settings.dp_where == "server"

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Count a release of each client that is asked to train; its reply may be seen even if it is lost here."""
        if rule.layout.size or self.sends_besides:
            most = self._most()
            for client in clients:
                # Who comes late may have been another client before.
                self._releases[client.id] = self._releases.get(client.id, most) + 1
            if not self.settings.allows(self._most()):
                raise ConfigError("dp-epsilon", self.settings.dp_epsilon, f"round {done.number} would spend more")
            done.privacy = self.spent()
        if self.at_server:
            rule.noise = lambda total: self.noise(total, done.number)

    def sees_each_reply(self) -> bool:
        """Tell whether updates are clipped here."""
        return self.at_server

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Return a client's arrays with its update clipped to C, whatever the client did: float64, same shape."""
        if not self.at_server:
            return shared
        start = rounded(rule.outgoing(client), self._wire_dtype)
        return start + clipped(start, shared, self.settings.dp_clip_norm)

    def noise(self, total: np.ndarray, server_round: int) -> np.ndarray:
        """Return the noise for a sum of updates that are at most C long: float64, same shape."""
        key = noise_key(self.settings, self._folder, self._seed, "server")
        amount = struct.pack("<2d", self.settings.dp_noise_multiplier, self.settings.dp_clip_norm)
        return self.settings.deviation * gaussian(key, b"%d/" % server_round + amount + total.tobytes(), len(total))

    def spent(self) -> dict[str, float]:
        """Return the privacy spent by the client asked most often: its updates against none, or against any others."""
        most, settings = self._most(), self.settings
        mu = math.sqrt(most) / settings.dp_noise_multiplier
        return {
            "epsilon": epsilon(mu, settings.dp_delta),
            "epsilon-replaced": epsilon(2 * mu, settings.dp_delta),
            "delta": settings.dp_delta,
            "releases": most,
        }

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Tell whether the budget leaves no further round to a client."""
        ends = not self.settings.allows(self._most() + 1)
        if ends and done.number < self._rounds:
            notice = "ended early: another round might spend more than dp-epsilon = %g"
            logger.log(INFO, notice, self.settings.dp_epsilon)
        return ends

    def _most(self) -> int:
        return max(self._releases.values(), default=0)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays on which the accounting depends."""
        return {"releases": np.array(list(self._releases.values()), np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        self._releases = dict(zip(self._releases, state["releases"].tolist(), strict=True))


def server_privacy(config: Config, rule: Rule, state_key: str) -> ServerPrivacy:
    """Return the listener of a run; refuse a rule that computes more of clients' arrays than a sum with noise."""
    settings, run = config.of(PrivacySettings), config.run
    if settings.dp_where == "server" and not rule.only_a_sum:
        message = f"the server's rule of {config.method.name} is more than a mean of updates; use client"
        raise ConfigError("dp-where", "server", message)
    folder = Path(run.state_dir).expanduser() / state_key / "server"
    sends_more = any(extra.goes(SERVER) for extra in config.method.extras)
    return ServerPrivacy(settings, rule.clients, run.seed, folder, run.wire_dtype, sends_more, run.num_server_rounds)
