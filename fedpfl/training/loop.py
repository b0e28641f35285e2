"""Runs phases and measures models. The only loop over batches in the project.

The inner loop is kept as close to bare PyTorch as it gets (``docs/results/performance.md`` has the numbers): an epoch's
samples are gathered by one permutation and cut into views, parameters that do not train get no gradient, and nothing is
read back from the tensors until the phase ends.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Callable, ContextManager, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import UnusedParameter
from ..core.frozen import NAMES
from ..core.metrics import CLASSES, MASKS, NEXT_TOKEN, PERPLEXITY, TARGETS
from ..core.model_state import ModelParts
from ..core.pixels import HALF
from ..core.samples import IGNORED, IGNORED_TOKEN, Samples
from .losses import KINDS, class_weights, weighing_with
from .measure import measured
from .optim import SGD, Optimizer, clip, make_optimizer
from .phase import Batch, Forward, Group, Phase
from .settings import TrainingSettings, batch_sizes

# On a CPU the activations of more samples fall out of the caches (measured for FedAvg's CNN: 500 costs a quarter more).
EVALUATION_BATCH = 200
# Images and texts have many numbers: a batch of a test is smaller than that of samples with one class.
DENSE_BATCH = 16


class Score(NamedTuple):
    """How a model does on some samples: sums, so that the scores of clients can be added.

    ``samples`` are values where ``loss`` is not for classes, and ``correct`` is what ``losses.LossKind.score`` says.
    ``metrics`` are sum and count of each metric that was asked for.
    """

    correct: float
    loss_sum: float
    samples: int
    metrics: Mapping[str, tuple[float, float]] = {}


def run_phase(
    model: nn.Module,
    phase: Phase,
    samples: Samples,
    settings: TrainingSettings,
    rng: np.random.Generator,
    factor: float = 1.0,
    velocity: dict[str, Tensor] | None = None,
    normalize: str = HALF,
    parts: ModelParts | None = None,
) -> float | None:
    """Train a model in place through one phase; return the mean loss of its last epoch, or None if nothing trains.

    The loss is without the penalty, and a mean whatever ``batch-loss`` is. ``rng`` decides the order of the samples,
    which are those of ``phase.data`` if it has any, and how they are augmented. Learning rates are multiplied by
    ``factor``. A model with convolutions should be in the format channels_last. The momentum of SGD starts from
    ``velocity``, by parameter, and ends there; without it, or of a parameter that it lacks, from 0. ``normalize`` is
    how the pixels of images were scaled. A caller that has the model's ``parts`` hands them over.
    """
    settings = phase.adjusted(settings)
    x, y = phase.data if phase.data is not None else samples
    parts = parts or ModelParts(model)
    trained, count = [(name, p) for name, p in parts.parameters if phase.train(name)], len(y)
    if not trained or phase.epochs == 0 or count == 0:
        return None
    names = [name for name, _ in trained]
    params = [p for _, p in trained]
    set_training(model, parts.modules)
    epochs = epochs_of(count, phase, settings, parts.modules)
    step = _stepper(step_parts(phase, settings, names, params, factor, velocity))
    augment = None if phase.learning_rate == 0 else settings.augmentation_of(normalize)
    losses: list[Tensor] = []
    phase_loss = phase.loss_with(settings)
    precision = step_precision(settings)
    only_training = _only_training(parts.parameters, set(names))
    statistics = statistics_of(parts.modules, phase.move_statistics)
    weighted = settings.class_weights != "none"
    weights = weighing_with(class_weights(y)) if weighted else nullcontext()
    with phase.during(model), only_training, statistics as norms, weights:
        for of_epoch in epochs:
            losses.clear()
            for size, batch in zip(of_epoch, _batches(x, y, of_epoch, rng)):
                if augment is not None:
                    batch = batch._replace(x=augment(batch.x, rng))
                # One sample has no variance to normalise by: BatchNorm uses its running statistics for it.
                lone = size == 1 and bool(norms)
                if lone:
                    set_mode(norms, False)
                if phase.gradient is None:
                    with precision:
                        loss = phase_loss(model, batch)
                    weight = settings.loss_weight(size)
                    grads = gradients(loss if weight == 1 else weight * loss, model, params)
                else:
                    with precision:
                        loss, grads = phase.gradient(model, batch, names, params)
                if phase.penalty is not None:
                    phase.penalty.add_gradient(names, params, grads)
                if settings.clip_norm:
                    clip(grads, settings.clip_norm)
                step(grads)
                if phase.project is not None:
                    with torch.no_grad():  # as in a batch of clients; a user's function may not have it
                        phase.project(names, params)
                losses.append(loss.detach())
                # The next step uses their memory again while it is still in the processor's cache.
                del loss, grads
                if lone:
                    set_mode(norms, True)
    parts.keep_tensors()
    return summed(torch.stack(losses).tolist(), epochs[-1]) / sum(epochs[-1])


def step_precision(settings: TrainingSettings) -> ContextManager[Any]:
    """Return the context of the forward pass of each training step; it may be entered any number of times.

    Nothing for float32 and tf32, autocast for bf16. Autocast does not keep a weight's copy in bfloat16 for a second use
    in a step: a method may move the weights between two forward passes (Per-FedAvg), and the copy would be out of date.
    """
    if settings.precision != "bf16":
        return nullcontext()
    return torch.autocast(settings.device, dtype=torch.bfloat16, cache_enabled=False)


def gradients(loss: Tensor, model: nn.Module, params: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss at parameters of a model: 0 at those on which it does not depend, if not at all."""
    depends = loss.requires_grad
    grads = torch.autograd.grad(loss, list(params), allow_unused=True) if depends else [None] * len(params)
    if all(grad is None for grad in grads):
        unused = {id(p) for p in params}
        names = [name for name, p in model.named_parameters() if id(p) in unused]
        shown = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
        raise UnusedParameter(f"the loss does not depend on {shown}: use it in the model, or do not train it")
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(params, grads)]


def set_training(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Set a model to training mode, but for BatchNorm layers that are frozen."""
    if not all(module.training for module in modules):
        model.train()
    for module in modules:
        if _has_frozen_statistics(module):
            module.eval()


def epochs_of(count: int, phase: Phase, settings: TrainingSettings, modules: Sequence[nn.Module]) -> list[list[int]]:
    """Return the sizes of the batches of each epoch; with ``steps`` the last one may be a part of an epoch."""
    sizes = batch_sizes(count, phase.batch_size or settings.batch_size, settings.last_batch)
    if len(sizes) > 1 and sizes[-1] == 1 and any(map(needs_several, modules)):
        sizes[-2:] = [sizes[-2] + 1]
    if phase.steps is None:
        return [sizes] * phase.epochs
    whole, rest = divmod(phase.steps, len(sizes))
    return [sizes] * whole + [sizes[:rest]] * bool(rest)


def sharing_steps(phases: Sequence[Phase], count: int, settings: TrainingSettings) -> list[Phase]:
    """Return the phases of a round as they share ``local-steps``, in the ratio of the steps of their epochs.

    A step counts for its gradients, so a round computes as many whatever the method; each phase has at least one step.
    One that moves nothing measures a whole gradient, and keeps its epochs.
    """
    if not settings.local_steps:
        return list(phases)
    steps = [steps_of(phase, count, settings) if phase.learning_rate != 0 else 0 for phase in phases]
    total = sum(number * phase.gradients for number, phase in zip(steps, phases))
    # Halves are rounded up.
    return [
        replace(phase, steps=max(1, (2 * settings.local_steps * number + total) // (2 * total))) if number else phase
        for number, phase in zip(steps, phases)
    ]


def steps_of(phase: Phase, count: int, settings: TrainingSettings) -> int:
    """Return how many steps a phase has on ``count`` samples, unless it has data of its own."""
    samples = count if phase.data is None else len(phase.data.y)
    return sum(map(len, epochs_of(samples, phase, settings, ()))) if samples else 0


@torch.no_grad()
def evaluate(
    forward: Forward, samples: Samples, loss: str = CLASSES, measures: Mapping[str, Any] | None = None
) -> Score:
    """Count the correct predictions of a forward pass, whose model the caller has set to evaluation mode."""
    kind, measures = KINDS[loss], measures or {}
    if loss in (MASKS, NEXT_TOKEN):
        return _evaluate_dense(forward, samples, measures, loss)
    if not kind.classes:
        outputs = predict(forward, samples.x).float()
        total = float(kind.criterion(outputs.double(), samples.y.double(), reduction="sum"))
        further = measured(measures, outputs, samples.y, loss)
        if loss == TARGETS and len(samples.y) < 2:  # which has no variance to explain
            return Score(0, total, 0, further)
        return Score(kind.score(outputs, samples.y), total, samples.y.numel(), further)
    # Read after the last batch, as each reading makes a GPU wait.
    correct: list[Tensor] = []
    losses: list[Tensor] = []
    parts: list[Tensor] = []
    count = len(samples.y)
    for batch in test_batches(count):
        x, y = samples.x[batch], samples.y[batch]
        logits = forward(x)
        correct.append(((logits.argmax(1) == y) & logits.isfinite().all(1)).sum())
        losses.append(F.cross_entropy(logits, y, reduction="sum"))
        if measures:
            parts.append(logits)
    further = measured(measures, torch.cat(parts), samples.y, loss) if measures else {}
    return Score(sum(map(int, correct)), float(sum(map(float, losses))), count, further)


def _evaluate_dense(forward: Forward, samples: Samples, measures: Mapping[str, Any], loss: str) -> Score:
    """Test on masks or texts, batch by batch; metrics are those of the classes or tokens that the model says."""
    kind, texts = KINDS[loss], loss == NEXT_TOKEN
    truth = samples.y[:, 1:] if texts else samples.y
    count = int((truth != (IGNORED_TOKEN if texts else IGNORED)).sum())
    if not count:
        return Score(0, 0.0, 0, measured(measures, samples.y, samples.y[:0], loss))
    parts, losses = [], []
    for batch in test_batches(len(samples.y), DENSE_BATCH):
        outputs = forward(samples.x[batch])
        losses.append(kind.criterion(outputs, samples.y[batch], "sum"))
        parts.append((outputs[:, :-1].argmax(-1) if texts else outputs.argmax(1)).to(samples.y.dtype))
    said, total = torch.cat(parts), sum(map(float, losses))
    further = measured(measures, said, truth, loss)
    if PERPLEXITY in measures:
        further = {**further, PERPLEXITY: (total, count)}
    return Score(kind.score(said, samples.y), total, count if texts else len(samples.y), further)


@torch.no_grad()
def predict(forward: Forward, x: Tensor) -> Tensor:
    """Return the outputs of ``forward`` for all samples, batch by batch; the caller sets the model to evaluation mode.

    Examples
    --------
    >>> import torch
    >>> from fedpfl import predict
    >>> predict(torch.nn.Linear(64, 10), torch.zeros(1000, 64)).shape
    torch.Size([1000, 10])
    """
    return torch.cat([forward(x[part]) for part in test_batches(len(x))])


def test_batches(count: int, size: int = EVALUATION_BATCH) -> list[slice]:
    """Return the batches of a test. One sample alone is too few for BatchNorm without running statistics."""
    starts = [*range(0, count, size)] or [0]
    if len(starts) > 1 and count - starts[-1] == 1:
        del starts[-1]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], count])]


class Part(NamedTuple):
    """Parameters of a phase that step together: their places, their optimiser, and the limit of their gradient."""

    members: list[int]
    optimizer: Optimizer
    clip_norm: float | None


def step_parts(
    phase: Phase,
    settings: TrainingSettings,
    names: Sequence[str],
    params: Sequence[Tensor],
    factor: float,
    velocity: dict[str, Tensor] | None,
) -> list[Part]:
    """Return the parts of a phase's parameters, one for each of its groups that has any, and one for the others."""

    def optimizer(members: Sequence[int], rate: float | None) -> Optimizer:
        chosen = next((r for r in (rate, phase.learning_rate) if r is not None), settings.learning_rate)
        chosen_params = [params[place] for place in members]
        made = make_optimizer(
            settings.optimizer, chosen_params, chosen * factor, settings.momentum, settings.weight_decay
        )
        # A phase that moves nothing gathers nothing for the next round either.
        if velocity is not None and isinstance(made, SGD) and made.momentum and phase.learning_rate != 0:
            made.velocity = [velocity.setdefault(names[place], torch.zeros_like(params[place])) for place in members]
        return made

    groups = (*phase.groups, Group(lambda name: True))
    members: list[list[int]] = [[] for _ in groups]
    for place, name in enumerate(names):
        members[next(i for i, group in enumerate(groups) if group.selected(name))].append(place)
    return [
        Part(places, optimizer(places, group.learning_rate), group.clip_norm)
        for group, places in zip(groups, members)
        if places
    ]


def _stepper(parts: Sequence[Part]) -> Callable[[list[Tensor]], None]:
    """Return a function that moves the parameters by their gradients, which it may overwrite."""

    def step(grads: list[Tensor]) -> None:
        for places, optimizer, limit in parts:
            theirs = [grads[place] for place in places]
            if limit is not None:
                clip(theirs, limit)
            optimizer.step(theirs)

    return step


def _batches(x: Tensor, y: Tensor, sizes: Sequence[int], rng: np.random.Generator) -> Iterator[Batch]:
    order = torch.from_numpy(rng.permutation(len(y))[: sum(sizes)]).to(y.device)
    if not isinstance(x, Tensor):  # samples are read when they are needed
        yield from (
            Batch(x.gathered(indices), y.index_select(0, indices), indices)
            for indices in torch.split(order, list(sizes))
        )
        return
    # Images lie as N×H×W×C in memory (channels_last): gathering rows of that view copies whole samples and keeps it so.
    rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    gathered, labels_of = rows.index_select(0, order), y.index_select(0, order)  # twice as fast as rows[order]
    inputs_of = gathered.permute(0, 3, 1, 2) if x.dim() == 4 else gathered
    for inputs, labels, positions in zip(*(torch.split(t, list(sizes)) for t in (inputs_of, labels_of, order))):
        yield Batch(inputs, labels, positions)


def summed(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the sum of the batches' mean losses times their sizes, added up in float32 one after the other."""
    first, *others = (np.float32(loss) * np.float32(size) for loss, size in zip(losses, sizes))
    return float(sum(others, first))


@contextmanager
def _only_training(parameters: Sequence[tuple[str, nn.Parameter]], names: set[str]) -> Iterator[None]:
    changed = [p for name, p in parameters if p.requires_grad != (name in names)]
    for p in changed:
        p.requires_grad_(not p.requires_grad)
    try:
        yield
    finally:
        for p in changed:
            p.requires_grad_(not p.requires_grad)


def _has_frozen_statistics(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm with frozen running statistics, which it uses in training, too."""
    return isinstance(module, _BatchNorm) and "running_mean" in getattr(module, NAMES, ())


@contextmanager
def statistics_of(modules: Sequence[nn.Module], move: bool) -> Iterator[list[_BatchNorm]]:
    """Yield the BatchNorm layers; with ``move`` false their running statistics do not change."""
    norms = [m for m in modules if isinstance(m, _BatchNorm) and not _has_frozen_statistics(m)]
    before: list[tuple[_BatchNorm, float]] = [(m, m.momentum) for m in norms]  # type: ignore[misc]
    # Without a momentum the statistics are means over all batches so far, and depend on their number.
    counts = [m.num_batches_tracked for m in norms if m.momentum is None]
    counted = [(count, count.clone()) for count in counts if count is not None]
    if not move:
        for m in norms:
            m.momentum = 0.0  # running ← 1·running + 0·batch, exactly
    try:
        yield norms
    finally:
        for m, momentum in before:
            m.momentum = momentum
        for now, count in counted if not move else ():
            now.copy_(count)


def needs_several(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm without running statistics, which has no output for one sample."""
    return isinstance(module, _BatchNorm) and module.running_mean is None


def set_mode(norms: list[_BatchNorm], training: bool) -> None:
    """Set BatchNorm layers to training or test mode."""
    for m in norms:
        m.training = training
