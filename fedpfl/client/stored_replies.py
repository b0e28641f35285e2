"""What a device has sent, where its owner bounds it: a round has one answer, and all answers are counted.

A server could ask for a round again with other settings, and so have the noise of differential privacy drawn anew. The
answer of a round is therefore stored before it is sent, and sent again whatever is asked; each new one is counted for
the whole device, since the server also chooses the key of a run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping

import numpy as np

from ..core.checksummed_files import read_arrays, write_arrays
from ..core.errors import StateError
from ..core.files import private_folder
from .policy import Policy

# A server whose newest checkpoint is damaged goes back by a round.
ANSWERS = 2
_FILE = re.compile(r"answer-(\d{6,})\.safetensors")


def answer_once(
    owner: Policy, folder: Path, server_round: int, noise: float, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the arrays that a client sends in a round: those of its first answer to it, else these.

    ``noise`` is the noise multiplier of the arrays, which are counted and stored.
    """
    path = folder / f"answer-{server_round:06d}.safetensors"
    if path.is_file():
        earlier = read_arrays(path)
        if {name: array.shape for name, array in earlier.items()} != {n: a.shape for n, a in arrays.items()}:
            raise StateError(f"round {server_round} was answered with arrays of other shapes: it has one answer")
        return earlier
    matches = [_FILE.fullmatch(file.name) for file in folder.iterdir()] if folder.is_dir() else []
    answered = sorted(int(match.group(1)) for match in matches if match)
    if answered and server_round < answered[-1]:
        raise StateError(f"round {server_round} is over: this client has answered round {answered[-1]}")
    owner.require_room(sum(array.nbytes for array in arrays.values()))
    owner.count_release(noise)
    private_folder(folder)
    write_arrays(path, arrays)
    for number in answered[: 1 - ANSWERS]:
        (folder / f"answer-{number:06d}.safetensors").unlink()
    return dict(arrays)
