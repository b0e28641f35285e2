"""The server's part of differential privacy: noise on the sum, and how much privacy each client has spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...client.options.privacy import gaussian, noise_key
from ...core.errors import ConfigError
from ...core.extras import SERVER
from ...core.layout import rounded
from ...core.payload import Payload
from ...core.server_view import Client
from ...core.vectors import clipped
from ...results.record import Round
from ...rules import Rule
from ...setup.options.privacy import PrivacySettings
from ..listener import Listener, Server


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
    ) -> None:
        self.settings = settings
        self.sends_besides = sends_besides
        self._releases = dict.fromkeys(clients, 0)
        self._seed, self._folder, self._wire_dtype = seed, folder, wire_dtype

    @property
    def at_server(self) -> bool:
        """Whether the server adds the noise."""
        return self.settings.dp_where == "server"

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Count a release of each client that is asked to train; its reply may be seen even if it is lost here."""
        if rule.layout.size or self.sends_besides:
            for client in clients:
                self._releases[client.id] += 1
            done.privacy = self.spent()
        if self.at_server:
            rule.noise = lambda total: self.noise(total, done.number)

    def sees_each_reply(self) -> bool:
        """Return whether updates are clipped here."""
        return self.at_server

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Return a client's arrays with its update clipped to C, whatever the client did: float64, same shape."""
        if not self.at_server:
            return shared
        start = rounded(rule.outgoing(client), self._wire_dtype)
        near: np.ndarray = start + clipped(start, shared, self.settings.dp_clip_norm)
        return near

    def noise(self, total: np.ndarray, server_round: int) -> np.ndarray:
        """Return the noise for a sum of updates that are at most C long: float64, same shape."""
        key = noise_key(self.settings, self._folder, self._seed, "server")
        return self.settings.deviation * gaussian(key, b"%d/" % server_round + total.tobytes(), len(total))

    def spent(self) -> dict[str, float]:
        """Return the privacy spent so far by the client that was asked most often.

        ``epsilon`` is that of one client's updates against none, ``epsilon-replaced`` against any others of that
        client.
        """
        most, settings = max(self._releases.values(), default=0), self.settings
        return {
            "epsilon": epsilon(settings.dp_noise_multiplier, most, settings.dp_delta),
            "epsilon-replaced": epsilon(settings.dp_noise_multiplier / 2, most, settings.dp_delta),
            "delta": settings.dp_delta,
            "releases": most,
        }

    def state(self) -> dict[str, np.ndarray]:
        """Return what the accounting depends on."""
        return {"releases": np.array(list(self._releases.values()), np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        self._releases = dict(zip(self._releases, state["releases"].tolist(), strict=True))


def server_privacy(server: Server) -> ServerPrivacy:
    """Return the listener of a run; refuse a rule that computes more of clients' arrays than a sum with noise."""
    config, rule, settings = server.config, server.rule, server.config.of(PrivacySettings)
    if settings.dp_where == "server" and not rule.only_a_sum:
        allowed = f"the server's rule of {config.method.name} is more than a mean of updates; use client"
        raise ConfigError("dp-where", "server", allowed)
    folder = Path(config.run.state_dir).expanduser() / server.folder.task()["state_key"] / "server"
    sends_more = any(extra.goes(SERVER) for extra in config.method.extras)
    return ServerPrivacy(settings, rule.clients, config.run.seed, folder, config.run.wire_dtype, sends_more)


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return the least ε for which that many releases of a sum with Gaussian noise are (ε, δ)-private.

    T releases with noise z (in units of the largest difference that one client makes) are one with z / √T: with µ = √T
    / z, δ(ε) = Φ(µ/2 − ε/µ) − e^ε Φ(−µ/2 − ε/µ) is exact (Balle and Wang: Improving the Gaussian Mechanism for
    Differential Privacy, ICML 2018, theorem 8; Dong, Roth, Su: Gaussian Differential Privacy, 2022, corollary 3.3).
    """
    if not releases:
        return 0.0
    # Imported here: every run without differential privacy would wait for them at its start.
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    mu = math.sqrt(releases) / noise_multiplier

    def exceeds(e: float) -> float:
        first, second = log_ndtr(mu / 2 - e / mu), e + log_ndtr(-mu / 2 - e / mu)
        return float(np.exp(first) - np.exp(second)) - delta

    if exceeds(0.0) <= 0:
        return 0.0
    # Enough by the tail bound of the Gaussian distribution of the privacy loss, whose mean is µ²/2 and deviation µ.
    enough = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(exceeds, 0.0, enough, xtol=1e-10, rtol=1e-12))
