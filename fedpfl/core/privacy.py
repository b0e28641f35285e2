"""Client-level differential privacy of what is shared: clip a client's update and add noise.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018, for the flat
clipping of a client's whole update. What it protects and what it does not: docs/privacy.md.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np

from .errors import ConfigError, DamagedFile
from .extras import SERVER, Extra
from .files import private_folder, write_atomically
from .layout import Layout
from .rng import generator
from .settings import setting

KEY_FILE = "noise.key"
KEY_BYTES = 32


@dataclass(frozen=True)
class PrivacySettings:
    """Whether and how a client's update of the shared arrays is clipped and gets noise."""

    dp_noise_multiplier: float = setting(
        0.0,
        "Standard deviation z of the noise on the shared arrays, in units of dp-clip-norm. 0: no differential privacy.",
        minimum=0,
    )
    dp_clip_norm: float = setting(
        1.0,
        "Maximum L2 norm C of a client's update over all shared arrays; longer updates are scaled down to it.",
        above=0,
    )
    dp_delta: float = setting(
        1e-5, "δ for which ε is reported; choose it well below 1 / number of clients.", above=0, maximum=0.1
    )
    dp_where: str = setting(
        "client",
        "Where noise is added. client: each client adds it to what it sends; works with any rule, and the server "
        "need not be trusted. server: the server adds it to the sum; needs a rule that is a mean, gives all clients "
        "equal weight, and lets the server see their clipped updates.",
        choices=("client", "server"),
    )
    dp_reproducible: bool = setting(
        False, "Draw the noise from the seed. For experiments only: anyone who knows the seed can subtract the noise."
    )

    @property
    def on(self) -> bool:
        """Whether there is any noise."""
        return self.dp_noise_multiplier > 0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in the unit of the shared values."""
        return self.dp_noise_multiplier * self.dp_clip_norm


def clipped(received: np.ndarray, trained: np.ndarray, norm: float) -> np.ndarray:
    """Return trained − received as float64, scaled down to an L2 norm of at most ``norm`` (C)."""
    update: np.ndarray = trained.astype(np.float64) - received
    length = float(np.sqrt(np.sum(np.square(update))))
    return update if length <= norm else update * (norm / length)


def private_update(
    received: np.ndarray, trained: np.ndarray, settings: PrivacySettings, key: bytes, server_round: int, layout: Layout
) -> np.ndarray:
    """Return what a client sends instead of its trained shared arrays, float32 of the same shape.

    ``received`` and ``trained`` are flat, with ``layout.size`` values; more may follow. ``layout`` tells which are
    variances. ``key`` is the client's secret. With ``dp-where = "server"`` the update is only clipped here.
    """
    update = clipped(received, trained, settings.dp_clip_norm)
    if settings.dp_where == "client":
        # A repeated round with the same outcome gets the same noise, so that its message reveals nothing new.
        context = b"%d/" % server_round + received.tobytes() + update.tobytes()
        update += settings.deviation * gaussian(key, context, len(update))
    return without_negative_variances(layout, (received + update).astype(np.float32))


def private_reply(
    received: np.ndarray,
    trained: np.ndarray,
    starts: Mapping[str, np.ndarray],
    extras: Mapping[str, np.ndarray],
    settings: PrivacySettings,
    key: bytes,
    server_round: int,
    layout: Layout,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return what a client sends in place of ``trained`` and of ``extras``, the arrays that its method adds.

    All of them are one vector to :func:`private_update`: one clip norm bounds them together. ``starts`` has what arrays
    of ``extras`` are bounded from, of the same sizes, without anything of a client's data; the others are bounded from
    0.
    """
    origin = [starts[name] if name in starts else np.zeros_like(array) for name, array in extras.items()]
    start, end = np.concatenate([received, *origin]), np.concatenate([trained, *extras.values()])
    sent = private_update(start, end, settings, key, server_round, layout)
    shared, *others = np.split(sent, np.cumsum([len(trained), *map(len, extras.values())])[:-1])
    return shared, dict(zip(extras, others))


def gaussian(key: bytes, context: bytes, size: int) -> np.ndarray:
    """Return standard normal float64 numbers that only the key's owner can tell: Box–Muller from SHAKE-256.

    Another ``context`` makes independent numbers.
    """
    pairs = (size + 1) // 2
    stream = hashlib.shake_256(key + hashlib.sha256(context).digest()).digest(16 * pairs)
    # 53 bits each, above 0, because of the logarithm.
    uniform = ((np.frombuffer(stream, "<u8") >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    both: np.ndarray = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:size]
    return both


def without_negative_variances(layout: Layout, vector: np.ndarray) -> np.ndarray:
    """Raise BatchNorm's variances to 0 where noise has made them negative, in place; return the vector."""
    for name, place in layout.slices().items():
        if "running_var" in name:
            np.maximum(vector[place], 0, out=vector[place])
    return vector


def noise_key(settings: PrivacySettings, folder: Path, seed: int, *owner: int | str) -> bytes:
    """Return the secret from which the noise is drawn: stored in ``folder``, or, if reproducible, made from the seed.

    The file is readable by its owner alone; one that is not as it was written raises ``DamagedFile``.
    """
    if settings.dp_reproducible:
        return generator(seed, "noise key", *owner).bytes(KEY_BYTES)
    path = folder / KEY_FILE
    if not path.is_file():
        private_folder(folder)
        made = secrets.token_bytes(KEY_BYTES)
        write_atomically(path, made + hashlib.sha256(made).digest(), private=True)
    content = path.read_bytes()
    key, checksum = content[:KEY_BYTES], content[KEY_BYTES:]
    # Versions that wrote no checksum wrote the key alone.
    if len(key) < KEY_BYTES or checksum not in (b"", hashlib.sha256(key).digest()):
        raise DamagedFile(path)
    return key


def require_covered(settings: PrivacySettings, method: str, extras: Sequence[Extra], **switches: bool) -> None:
    """Raise ``ConfigError`` for whatever would leave a client past the noise.

    ``switches`` are settings, by name with underscores, that make clients send more about their arrays.
    """
    if not settings.on:
        return
    value = settings.dp_noise_multiplier
    sent = [extra for extra in extras if extra.goes(SERVER)]
    for extra in sent:
        if extra.exact not in ("", "float32"):
            allowed = (
                f"must be 0 with {method}: its clients send {extra.name!r} as {extra.exact}, which cannot carry noise"
            )
            raise ConfigError("dp-noise-multiplier", value, allowed)
    if sent and settings.dp_where == "server":
        arrays = " and ".join(repr(extra.name) for extra in sent)
        raise ConfigError("dp-where", "server", f"must be client with {method}: its clients also send {arrays}")
    for name, on in switches.items():
        if on:
            key = name.replace("_", "-")
            raise ConfigError(
                "dp-noise-multiplier", value, f"must be 0 with {key} = true: clients then send more, without noise"
            )
