"""The accuracy without shared or personal parts: each is replaced by random values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpfl.core.rng import generator
from fedpfl.core.settings import setting
from fedpfl.methods.fedfac.channel_sharing import ChannelSharing
from fedpfl.results.new_clients import Simulation
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.study.analysis.cache import cached
from fedpfl.study.analysis.registry import Result, analysis
from fedpfl.study.analysis.repetitions import bars, grouped, require, score_of
from fedpfl.study.analysis.stored_models import fresh_arrays, overwrite

# Seeds of fresh arrays are below this; no run has such a seed by chance.
HIGHEST_SEED = 2**31


@dataclass(frozen=True)
class MaskingOptions:
    """Options of the ablation."""

    draws: int = setting(3, "Number of draws of random values; accuracies are averaged over them.", minimum=1)


@analysis(
    "masking", "Accuracy with shared or personal parts masked by random values (FedFac, table 8)", MaskingOptions,
    computes=True,
)  # fmt: skip
def masking(runs: Sequence[RunFolder], options: MaskingOptions) -> Result:
    """Test the clients' stored models with one part replaced by fresh initial values.

    For methods that split channels (``fedfac``, ``fedsplit``) only channels of the split layers are masked, as in the
    paper; for others all parameters of the part. Panel B of the paper's table is the column ``unmasked`` of two runs:
    ``fedfac``, and ``fedsplit`` with ``fedsplit-split = "random"``.

    The paper masks "when updating the local models". Here the models are those at the end of the run, and nothing is
    trained after the mask. ``fedfac-mask`` masks while a run trains.
    """
    rows: list[list[Cell]] = []
    score = score_of(runs)
    for group in grouped(runs):
        accuracies_of_runs = [
            accuracies for run in group.runs for accuracies in [_cached_accuracies(run, options)] if accuracies
        ]
        if accuracies_of_runs:
            spreads = [
                Spread.of([score.factor * accuracies[kind] for accuracies in accuracies_of_runs]) for kind in KINDS
            ]
            rows.append([group.label, *spreads])
    require(rows, "a shared and a personal part", 'for example method = "fedfac" has both')
    title = f"{score.title} with a part masked"
    is_share = score.factor == 100
    table = Table(f"{title}{', in percent' * is_share}", ["run", *KINDS], rows, score.digits)
    return Result([table], [bars(title, "percent" if is_share else score.name, KINDS, rows)])


KINDS = ("unmasked", "mask-shared", "mask-personalised")


def _cached_accuracies(run: RunFolder, options: MaskingOptions) -> dict[str, float]:
    def compute() -> dict[str, np.ndarray]:
        accuracies = masked_accuracies(run, options.draws) or {}
        return {kind: np.array(accuracy) for kind, accuracy in accuracies.items()}

    return {kind: float(accuracy) for kind, accuracy in cached(run, "masking", options, compute).items()}


def masked_accuracies(run: RunFolder, draws: int) -> dict[str, float] | None:
    """Return the score of all clients' test samples, such as the share of right classes, for each of ``KINDS``.

    None if the method has no personal or no shared parameters.
    """
    stored = Simulation.of(run)
    correct, values = dict.fromkeys(KINDS, 0.0), 0
    for client in stored.rule.participants:
        if not client.test_samples:
            continue
        stored.load(client.id)
        shared, personal = parts(stored)
        if not shared or not personal:
            return None
        unmasked = stored.score(stored.load(client.id))
        values += unmasked.samples * draws
        correct["unmasked"] += draws * unmasked.correct
        for draw in range(draws):
            seed = int(generator(stored.engine.config.run.seed, "mask", client.id, draw).integers(HIGHEST_SEED))
            arrays = fresh_arrays(stored, seed)
            for kind, where in (("mask-shared", shared), ("mask-personalised", personal)):
                local = stored.load(client.id)
                overwrite(stored, arrays, where)
                correct[kind] += stored.score(local).correct
    return {kind: count / values for kind, count in correct.items()} if values else None


def parts(stored: Simulation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return which parameters of the loaded model are shared and which are personal: bool arrays by name.

    If the channels of a model are split, only the arrays of the split layers are in either.
    """
    sharing = stored.engine.sharing
    elements = sharing.personal_elements()
    names = [name for name, _ in stored.engine.model.named_parameters()]
    if isinstance(sharing, ChannelSharing):
        split = {name for layer in sharing.channels.layers for name in layer}
        names = [name for name in names if name in split]
    shared, personal = {}, {}
    for name in names:
        where = elements.get(name)
        if where is None:
            where = torch.zeros_like(stored.engine.model.state_dict()[name], dtype=torch.bool)
        if not where.all():
            shared[name] = ~where
        if where.any():
            personal[name] = where
    return shared, personal
