"""Tests many clients as one batch: a forward pass of stacked models predicts the samples of all.

It is the counterpart of :mod:`fedpfl.training.batched`; scores differ by rounding from those of :func:`evaluate`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import in_one_line
from ..core.samples import Samples
from .batched import Holder, Layers, Member, Turns
from .loop import Score, test_batches
from .phase import Batch, Forward
from .stacked_phases import CannotStack, Merged


def scores_of_many(
    turns: Turns, forwards: Sequence[Forward], members: Sequence[Member], samples: Sequence[Samples], room: int,
    alike: bool,
) -> list[Score]:  # fmt: skip
    """Test clients on samples with a class each; the model is in evaluation mode.

    ``room`` is how many samples are predicted at a time. ``alike`` says that a prediction depends on its sample alone:
    then clients with fewer samples are filled up. Else those with equally many are tested together.

    Raises
    ------
    CannotStack
        The forward passes cannot run as one.
    """
    order = sorted(range(len(members)), key=lambda index: len(samples[index].y), reverse=True)
    groups = [order] if alike else [list(group) for _, group in groupby(order, lambda index: len(samples[index].y))]
    scores: dict[int, Score] = {}
    try:
        with torch.no_grad():
            for group in groups:
                of_group = _scores(
                    turns, [forwards[index] for index in group], [members[index] for index in group],
                    [samples[index] for index in group], room,
                )  # fmt: skip
                scores.update(zip(group, of_group))
    except (CannotStack, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # what vmap cannot do is all kinds of errors; alone clients show which are theirs
        raise CannotStack(in_one_line(error)) from error
    finally:
        turns.reset()
    return [scores[index] for index in range(len(members))]


def _scores(
    turns: Turns, forwards: Sequence[Forward], members: Sequence[Member], samples: Sequence[Samples], room: int
) -> list[Score]:
    """Test clients, those with the most samples first."""
    stacked = turns.stacked(members)
    merged = Merged([(forward, dict(member.attributes)) for forward, member in zip(forwards, members)], turns.arrays)
    holder = Holder(turns.model)

    def of_one(arrays: Any, leaves: Any, x: Tensor) -> Tensor:
        made = merged.made(leaves, arrays)
        forward, attributes = made.value
        turns.set(attributes)
        with Layers(()):
            logits = holder.call(lambda model, batch: forward(batch.x), arrays, Batch(x, x, x))
        made.require_unchanged()
        return logits

    counts = [len(one.y) for one in samples]
    device = samples[0].x.device
    correct, losses = (torch.zeros(len(members), dtype=kind, device=device) for kind in (torch.int64, torch.float32))
    for part in test_batches(counts[0]):
        there = sum(count > part.start for count in counts)
        each = max(1, room // max(1, part.stop - part.start))
        for first in range(0, there, each):
            rows = slice(first, min(first + each, there))
            x, y, real = _filled([Samples(*(whole[part] for whole in one)) for one in samples[rows]])
            logits = torch.vmap(of_one)(
                {name: array[rows] for name, array in stacked.items()}, [leaf[rows] for leaf in merged.leaves], x
            )
            correct[rows] += ((logits.argmax(2) == y) & real).sum(1)
            each_loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").reshape(y.shape)
            losses[rows] += torch.where(real, each_loss, 0.0).sum(1)
    if merged.padded and not bool(torch.isfinite(losses).all()):
        raise CannotStack("a prediction uses all rows of a tensor with a row for each sample")
    return [Score(right, loss, count, {}) for right, loss, count in zip(correct.tolist(), losses.tolist(), counts)]


def _filled(samples: Sequence[Samples]) -> tuple[Tensor, Tensor, Tensor]:
    """Return samples of clients, clients × the most that one has, and which of them are real."""
    counts = torch.tensor([len(one.y) for one in samples], device=samples[0].x.device)
    x, y = (torch.nn.utils.rnn.pad_sequence([one[part] for one in samples], batch_first=True) for part in (0, 1))
    return x, y, torch.arange(y.shape[1], device=x.device) < counts[:, None]
