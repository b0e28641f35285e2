"""How large the models of runs are, and what a prediction costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...core.frozen import frozen
from ...core.name_lists import shape_of
from ...core.sharing import UNUSED_BUFFER
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Table
from ...setup.assembly import assemble, plain_model
from .registry import NoOptions, Result, analysis
from .repetitions import grouped


@analysis("model-size", "Values of a model, shared, personal and frozen, and the FLOPs of a prediction")
def model_size(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Count what the model of each run's settings holds, as the method has it before round 1."""
    rows: list[list[Cell]] = []
    for group in grouped(runs):
        run = group.runs[0]
        config, task = run.parsed(), run.described()
        shape, classes, vocabulary = shape_of(task["input_shape"]), task["num_classes"], task.get("vocabulary", 0)
        model, sharing = assemble(config, shape, classes, vocabulary=vocabulary)
        arrays = model.state_dict().items()
        moving = sum(array.numel() for name, array in arrays if not name.endswith(UNUSED_BUFFER))
        still = sum(array.numel() for array in {id(array): array for _, array in frozen(model)}.values())
        plain = plain_model(config, shape, classes, vocabulary)
        flops = flops_of(plain, torch.zeros(1, *shape, dtype=torch.int64 if vocabulary else torch.float32))
        shared = sharing.layout.size
        rows.append([group.label, moving + still, shared, moving - shared, still, flops or None])
    columns = ["run", "values", "shared", "personal", "frozen", "FLOPs of a prediction"]
    note = (
        "Values: parameters and buffers of the first run of each group, as its method has them before round 1. FLOPs: "
        "of the plain model and one sample, two for a multiplication with its addition; convolutions, matrix products "
        "and attention count, and nothing else does."
    )
    return Result([Table("Size of the models", columns, rows, note=note)])


@torch.no_grad()
def flops_of(model: nn.Module, x: torch.Tensor) -> int:
    """Count the floating-point operations of a forward pass."""
    with FlopCounterMode(display=False) as counter:
        model.eval()(x)
    return int(counter.get_total_flops())
