"""Roles of Shakespeare's plays as clients, and a small decoder that has read other plays.

The seed draws half of the plays, and the model ``decoder`` reads them for some hundred steps. Of each other play, the
role with the longest text becomes a client, up to eight clients. A sample is 80 characters. The last quarter of a
role's text is for tests.

It reads ``shakespeare.json`` with ``{"play / role": text, …}`` and writes ``roles.npz`` for ``dataset = "npz"``,
``split = "given"`` and ``loss = "next-token"``, and ``decoder.safetensors`` for ``initial-weights``.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from fedpfl.data.datasets.text import CHARACTERS, CHUNK, chunks
from fedpfl.models import build
from fedpfl.training.losses import next_token_loss

CLIENTS, SAMPLES, TEST_SHARE = 8, 160, 0.25
BATCH, RATE = 32, 0.003


def made_up(rng: np.random.Generator) -> dict[str, str]:
    """Return roles with vocabularies of their own, for trials without the plays."""
    letters = list("abcdefghijklmnopqrstuvwxyz")
    roles = {}
    for play in range(6):
        for role in range(2):
            words = ["".join(rng.choice(letters, rng.integers(2, 8))) for _ in range(12)]
            roles[f"play {play} / role {role}"] = " ".join(rng.choice(words, 1200))
    return roles


def pretrained(texts: np.ndarray, steps: int, rng: np.random.Generator) -> nn.Module:
    """Return a decoder after some steps of Adam on texts, uint8 n × 80."""
    model = build("decoder", (CHUNK,), len(CHARACTERS), len(CHARACTERS))
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(steps):
        x = torch.from_numpy(texts[rng.integers(len(texts), size=BATCH)]).long()
        optimizer.zero_grad()
        next_token_loss(model(x), x).backward()
        optimizer.step()
    return model


def main() -> None:
    """Write the data and the model of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FILE", help="shakespeare.json; without it made-up roles")
    parser.add_argument("--steps", type=int, default=600, help="of the decoder before the run (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", required=True, help="where the two files go")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    roles = json.loads(options.data.expanduser().read_text(encoding="utf-8")) if options.data else made_up(rng)
    plays = defaultdict(list)
    for role in sorted(roles):
        plays[role.partition(" / ")[0]].append(role)
    order = [sorted(plays)[place] for place in rng.permutation(len(plays))]
    read, others = order[: len(order) // 2], order[len(order) // 2 :]
    longest = [max(plays[play], key=lambda role: len(roles[role])) for play in others]
    clients = sorted(longest, key=lambda role: len(roles[role]), reverse=True)[:CLIENTS]
    texts = np.concatenate([chunks(roles[role], CHUNK)[0] for play in read for role in plays[play]])
    model = pretrained(texts, options.steps, rng)
    arrays = defaultdict(list)
    for role in clients:
        x = chunks(roles[role], CHUNK)[0][:SAMPLES]
        for part, rows in zip(("train", "test"), np.split(x, [len(x) - int(TEST_SHARE * len(x))]), strict=True):
            arrays[f"x_{part}"].append(rows)
            arrays[f"client_{part}"].append(np.full(len(rows), role))
    joined = {name: np.concatenate(parts) for name, parts in arrays.items()}
    joined.update({f"y_{part}": joined[f"x_{part}"].astype(np.int32) for part in ("train", "test")})
    options.write.mkdir(parents=True)
    np.savez(options.write / "roles.npz", vocabulary=len(CHARACTERS), **joined)
    save_file(model.state_dict(), options.write / "decoder.safetensors")


if __name__ == "__main__":
    main()
