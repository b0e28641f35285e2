"""What shared and personal parts are worth: each in turn replaced by random values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.rng import generator
from ..core.settings import setting
from ..methods.fedfac.sharing import ChannelSharing
from ..results.new_clients import Simulation
from ..results.run import RunFolder
from ..results.tables import Cell, Spread, Table
from .kept import kept
from .left import fresh_arrays, overwrite
from .registry import Result, analysis
from .runs import bars, grouped, require

# Of the generator: fresh arrays are drawn from a seed that is no run's by chance.
HIGHEST_SEED = 2**31


@dataclass(frozen=True)
class MaskingOptions:
    """Options of the ablation."""

    draws: int = setting(3, "Draws of random values, over which accuracies are averaged.", minimum=1)


@analysis(
    "masking", "Accuracy with shared or personal parts masked by random values (FedFac, table 8)", MaskingOptions,
    computes=True,
)  # fmt: skip
def masking(runs: Sequence[RunFolder], options: MaskingOptions) -> Result:
    """Test the clients' stored models with one part replaced by fresh initial values.

    For methods that split channels (``fedfac``, ``fedsplit``) only channels of the split layers are masked, as in the
    paper; for others all parameters of the part. Panel B of the paper's table is the column ``unmasked`` of a run of
    ``fedfac`` beside one of ``fedsplit`` with ``fedsplit-split = "random"``.

    Notes
    -----
    The paper masks "when updating the local models"; here the models are those at the end of the run, and nothing is
    trained after the mask. ``fedfac-mask`` masks while a run trains.
    """
    rows: list[list[Cell]] = []
    for group in grouped(runs):
        found = [accuracies for run in group.runs for accuracies in [_kept_accuracies(run, options)] if accuracies]
        if found:
            spreads = [Spread.of([100 * of[kind] for of in found]) for kind in KINDS]
            rows.append([group.label, *spreads])
    require(rows, "a shared and a personal part", 'for example method = "fedfac" has both')
    table = Table("Accuracy with a part masked, in percent", ["run", *KINDS], rows)
    return Result([table], [bars("Accuracy with a part masked", "percent", KINDS, rows)])


KINDS = ("unmasked", "mask-shared", "mask-personalised")


def _kept_accuracies(run: RunFolder, options: MaskingOptions) -> dict[str, float]:
    def compute() -> dict[str, np.ndarray]:
        found = masked_accuracies(run, options.draws) or {}
        return {kind: np.array(accuracy) for kind, accuracy in found.items()}

    return {kind: float(accuracy) for kind, accuracy in kept(run, "masking", options, compute).items()}


def masked_accuracies(run: RunFolder, draws: int) -> dict[str, float] | None:
    """Return the share of all clients' test samples that are classified correctly, for each of ``KINDS``.

    None if the method has no personal or no shared parameters.
    """
    left = Simulation.of(run)
    correct, samples = dict.fromkeys(KINDS, 0.0), 0
    for client in left.rule.participants:
        if not client.test_samples:
            continue
        left.load(client.id)
        shared, personal = parts(left)
        if not shared or not personal:
            return None
        samples += client.test_samples * draws
        correct["unmasked"] += draws * left.correct(left.load(client.id))
        for draw in range(draws):
            seed = int(generator(left.engine.config.run.seed, "mask", client.id, draw).integers(HIGHEST_SEED))
            arrays = fresh_arrays(left, seed)
            for kind, where in (("mask-shared", shared), ("mask-personalised", personal)):
                local = left.load(client.id)
                overwrite(left, arrays, where)
                correct[kind] += left.correct(local)
    return {kind: count / samples for kind, count in correct.items()} if samples else None


def parts(left: Simulation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return where the loaded model's parameters are shared and where personal: bool arrays by name.

    Of a model whose channels are split only the arrays of the split layers are in either.
    """
    sharing = left.engine.sharing
    own = sharing.personal_elements()
    names = [name for name, _ in left.engine.model.named_parameters()]
    if isinstance(sharing, ChannelSharing):
        split = {name for layer in sharing.channels.layers for name in layer}
        names = [name for name in names if name in split]
    shared, personal = {}, {}
    for name in names:
        where = own.get(name)
        if where is None:
            where = torch.zeros_like(left.engine.model.state_dict()[name], dtype=torch.bool)
        if not where.all():
            shared[name] = ~where
        if where.any():
            personal[name] = where
    return shared, personal
