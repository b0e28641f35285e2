"""Client-level differential privacy of what is shared: clip a client's update and add noise.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018, for the flat
clipping of a client's whole update. What it protects and what it does not: docs/how-to/privacy.md.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from ...core.errors import DamagedFile
from ...core.files import private_folder, write_atomically
from ...core.layout import Layout
from ...core.payload import Payload
from ...core.rng import generator
from ...core.vectors import clipped, without_negative_variances
from ...methods.base import LocalRound
from ...setup.options.privacy import PrivacySettings
from ..option_hooks import ClientPart, Training
from ..policy import FILE_BYTES, guard

KEY_FILE = "noise.key"
KEY_BYTES = 32


class ClientPrivacy(ClientPart):
    """Clips what a client sends, and adds noise to it."""

    changes_shared = True

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.settings: PrivacySettings = engine.config.of(PrivacySettings)

    def send(self, training: Training, shared: np.ndarray, extra: Payload) -> tuple[np.ndarray, Payload]:
        """Return private arrays, and of the method's numbers, to which no noise is added, those that the rule needs."""
        local = training.local
        key = noise_key(self.settings, training.state.folder, local.seed, local.client)
        shared, arrays = self.private(local, shared, extra.arrays, key)
        reads = training.method.aggregation.rule.reads
        return shared, Payload(metrics={n: extra.metrics[n] for n in reads if n in extra.metrics}, arrays=arrays)

    def private(
        self, local: LocalRound, shared: np.ndarray, extras: Mapping[str, np.ndarray], key: bytes
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Clip and disturb the trained shared arrays and the method's extras."""
        layout = self.engine.sharing.layout
        # All clients know the first arrays, from the seed; the client's last ones are its secret.
        starts = self.engine.extras.private_starts(local.extras)
        received = layout.unpack(local.message.arrays)
        start, end = ({n: array.reshape(-1) for n, array in arrays.items()} for arrays in (starts, extras))
        shared, sent = private_reply(received, shared, start, end, self.settings, key, local.round, layout)
        return shared, {name: array.reshape(extras[name].shape) for name, array in sent.items()}


def private_update(
    received: np.ndarray, trained: np.ndarray, settings: PrivacySettings, key: bytes, server_round: int, layout: Layout
) -> np.ndarray:
    """Return the private update that replaces a client's trained shared arrays, float32 of the same shape.

    ``received`` and ``trained`` are flat, with ``layout.size`` values; more may follow. ``layout`` tells which are
    variances. ``key`` is the client's secret. With ``dp-where = "server"`` the update is only clipped here.
    """
    update = clipped(received, trained, settings.dp_clip_norm)
    if settings.dp_where == "client":
        # A repeated round with the same outcome gets the same noise, so that its message reveals nothing new; with
        # another deviation or clip norm it is another outcome, since two multiples of one noise cancel.
        amount = struct.pack("<2d", settings.dp_noise_multiplier, settings.dp_clip_norm)
        context = b"%d/" % server_round + amount + received.tobytes() + update.tobytes()
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
    """Return the private values in place of ``trained`` and of ``extras``, the arrays that its method adds.

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
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:size]


def noise_key(settings: PrivacySettings, folder: Path, seed: int, *owner: int | str) -> bytes:
    """Return the secret from which the noise is drawn: stored in ``folder``, or, if reproducible, made from the seed.

    The file is readable by its owner alone; one that is not as it was written raises ``DamagedFile``.
    """
    if settings.dp_reproducible:
        return generator(seed, "noise key", *owner).bytes(KEY_BYTES)
    path = folder / KEY_FILE
    if not path.is_file():
        if (policy := guard()) is not None:
            policy.require_room(FILE_BYTES)
        private_folder(folder)
        made = secrets.token_bytes(KEY_BYTES)
        write_atomically(path, made + hashlib.sha256(made).digest(), private=True)
    content = path.read_bytes()
    key, checksum = content[:KEY_BYTES], content[KEY_BYTES:]
    if checksum != hashlib.sha256(key).digest():
        raise DamagedFile(path)
    return key
