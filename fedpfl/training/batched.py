"""Trains many clients as one batch: each step of all of them is one step of stacked models.

Small models leave a GPU idle, as each of their operations is too little for it. So the arrays of clients with the same
model are stacked along a new first axis, and ``torch.vmap`` computes a phase's loss once for all. Each client keeps its
own weights, order of samples, BatchNorm statistics, state of the optimiser and random draws, and makes the steps that
it would make alone, in batches of the same sizes: results differ by rounding.

A phase with a ``gradient`` of its own, or whose functions do what ``vmap`` cannot do, raises ``CannotStack`` and leaves
the clients as they were. They then run it one after the other, with ``run_phase``.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from logging import getLogger
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence, Union, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.errors import in_one_line
from ..core.frozen import frozen
from ..core.model_state import PYTORCHS, attributes_of, copied, is_changeable, is_usual, same, same_attributes
from ..core.samples import Samples
from ..core.sharing import RoundStart
from .augment import find as find_augmentation
from .augment import flip_crop
from .loop import Part, epochs_of, set_mode, set_training, statistics_of, step_parts, step_precision, summed
from .losses import class_weights, weighing_with
from .optim import SGD, TorchOptimizer, clip
from .phase import Batch, Phase, loss_of
from .settings import TrainingSettings
from .stacked_phases import CannotStack, Merged

logger = getLogger("fedpfl.training")

# Places of clients in a batch: neighbours, of which a slice is a view, or any.
Rows = Union[slice, Tensor]
# As many steps of one shape must follow for their capture to pay.
_STEPS_OF_A_GRAPH = 8
# What dropout layers call; a mask of ones tells what each does to its input.
_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@dataclass
class Member:
    """A client of a batch, as it is between two phases.

    ``arrays`` are those of the model, by name, and ``attributes`` what else its modules have for this client alone, by
    module and name. ``generator`` makes the source of a phase's random choices; ``draws`` is the state of torch's own,
    or makes it. While ``start`` is there, the arrays are these, and the model has not held them yet.
    """

    samples: Samples
    generator: Callable[[int], np.random.Generator]
    draws: Callable[[], Tensor] | Tensor
    start: RoundStart | None
    velocity: dict[int, dict[str, Tensor]] | None
    arrays: dict[str, Tensor] = field(default_factory=dict)
    attributes: dict[tuple[int, str], Any] = field(default_factory=dict)

    def state(self) -> Tensor:
        """Return the state of torch's generator."""
        return self.draws() if callable(self.draws) else self.draws


class Turns:
    """One model in which clients take turns: each puts in what is its own, and takes it out again.

    Frozen arrays stay where they are, as all clients have the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        common = {id(array) for _, array in frozen(model)}
        both = [*model.named_parameters(), *model.named_buffers()]
        self.arrays = {name: array for name, array in both if id(array) not in common}
        self.modules = list(model.modules())
        self._attributes = [dict(vars(module)) for module in self.modules]
        # What foreign modules may change in place.
        self._contents = {
            (place, name): copied(value)
            for place, (module, attributes) in enumerate(zip(self.modules, self._attributes))
            for name, value in attributes.items()
            if not is_usual(module) and name not in PYTORCHS and is_changeable(value) and not isinstance(value, Tensor)
        }

    def take(self, member: Member) -> None:
        """Take a client's arrays and attributes out of the model."""
        member.start = None
        member.arrays = {name: array.detach().clone() for name, array in self.arrays.items()}
        member.attributes = {}
        for place, (module, before) in enumerate(zip(self.modules, self._attributes)):
            for name, value in vars(module).items():
                if name != "training" and (
                    before.get(name, vars(module)) is not value or not self._is_as_before(place, name, value)
                ):
                    member.attributes[place, name] = value
        self.reset()

    @torch.no_grad()
    def put(self, member: Member) -> None:
        """Put a client's arrays and attributes into the model."""
        if member.start is not None:
            member.start.load()
        else:
            for name, array in self.arrays.items():
                array.copy_(member.arrays[name])
        self.set(member.attributes)

    def stacked(self, members: Sequence[Member]) -> dict[str, Tensor]:
        """Return the arrays of clients, one behind the other."""
        starts = [member.start for member in members]
        first = starts[0]
        if first is None or any(one is None or not first.shared.same_as([one.shared]) for one in starts):
            for member in members:
                if member.start is not None:
                    self.put(member)
                    self.take(member)
            return {name: torch.stack([member.arrays[name] for member in members]) for name in self.arrays}
        rows = {}
        for name, like in self.arrays.items():
            if name not in first.shared and name in first.personal:
                personal = torch.from_numpy(np.stack([cast(RoundStart, one).personal[name] for one in starts]))
                rows[name] = personal.reshape(len(starts), *like.shape).to(like.device, like.dtype)
            else:
                array = first.shared[name] if name in first.shared else like.detach()
                rows[name] = array.expand(len(starts), *like.shape).contiguous()
        return rows

    def set(self, attributes: Mapping[tuple[int, str], Any]) -> None:
        """Give modules attributes of a client."""
        for (place, name), value in attributes.items():
            vars(self.modules[place])[name] = value

    def reset(self) -> None:
        """Give modules the attributes that they have between clients."""
        for module, before in zip(self.modules, self._attributes):
            attributes = vars(module)
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update({name: value for name, value in before.items() if name != "training"})
        for (place, name), content in self._contents.items():
            if not same(self._attributes[place][name], content):
                fresh = self._attributes[place][name] = copied(content)
                vars(self.modules[place])[name] = fresh

    def _is_as_before(self, place: int, name: str, value: Any) -> bool:
        return (place, name) not in self._contents or same(value, self._contents[place, name])

    @contextmanager
    def of(self, member: Member) -> Iterator[None]:
        """Let the model be a client's within the block."""
        self.put(member)
        yield
        self.take(member)


class TurnsByModel(Dict[nn.Module, Turns]):
    """The turns that clients take in each model, made when they are first asked for."""

    def __missing__(self, model: nn.Module) -> Turns:
        self[model] = Turns(model)
        return self[model]


def run_phase_of_many(
    turns: Turns, phases: Sequence[Phase], members: Sequence[Member], settings: TrainingSettings, place: int,
    factor: float, normalize: str,
) -> list[float | None]:  # fmt: skip
    """Train clients through the phase of each, all at once; return their mean losses, as :func:`run_phase` does.

    ``place`` is that of the phases in the clients' schedules.

    Raises
    ------
    CannotStack
        The phases cannot run as one. The clients are as they were.
    """
    before = [(member.arrays, member.attributes, member.draws, member.start) for member in members]
    try:
        with _during(turns, phases, members), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # a loop over clients in one operation
            return _Run(turns, phases, members, settings, place, factor, normalize).run()
    except torch.cuda.OutOfMemoryError:
        _go_back(turns, members, before)
        raise
    except Exception as error:  # what vmap cannot do is all kinds of errors; alone clients show which are theirs
        _go_back(turns, members, before)
        if isinstance(error, CannotStack):
            raise
        raise CannotStack(in_one_line(error)) from error


def _go_back(turns: Turns, members: Sequence[Member], before: Sequence[tuple[Any, ...]]) -> None:
    turns.reset()
    for member, was in zip(members, before):
        member.arrays, member.attributes, member.draws, member.start = was


@contextmanager
def _during(turns: Turns, phases: Sequence[Phase], members: Sequence[Member]) -> Iterator[None]:
    """Surround the block with what surrounds the phase of each client; what it changes in the model is the client's."""
    entered = []
    try:
        for phase, member in zip(phases, members):
            if phase.during is not nullcontext:
                with turns.of(member):
                    context = phase.during(turns.model)
                    context.__enter__()
                    entered.append((context, member))
        yield
    finally:
        for context, member in entered:
            with turns.of(member):
                context.__exit__(None, None, None)


class _Run:
    """A phase of many clients."""

    def __init__(
        self, turns: Turns, phases: Sequence[Phase], members: Sequence[Member], settings: TrainingSettings, place: int,
        factor: float, normalize: str,
    ) -> None:  # fmt: skip
        if getattr(turns.model, "hooks_gradients", False):  # gradients of one client would not come by
            raise CannotStack("the model has hooks on gradients")
        self.names = _alike(phases, list(turns.arrays), turns.model)
        self.turns, self.phase = turns, phases[0]
        self.settings = settings = self.phase.adjusted(settings)
        self.normalize, self.place, self.factor = normalize, place, factor
        self.all_members = members
        # Those that have the most steps come first, and those whose batches have the same sizes next to each other.
        chosen = []
        for phase, member in zip(phases, members):
            x, y = phase.data if phase.data is not None else member.samples
            if not isinstance(x, Tensor):
                raise CannotStack("samples are read when they are needed")
            epochs = epochs_of(len(y), phase, settings, turns.modules) if len(y) else []
            if steps := [size for of_epoch in epochs for size in of_epoch]:
                chosen.append((steps, phase, member, Samples(x, y), len(epochs[0]), len(epochs[-1])))
        chosen.sort(key=lambda of_one: (len(of_one[0]), of_one[0]), reverse=True)
        self.sizes = [of_one[0] for of_one in chosen]
        self.phases = [of_one[1] for of_one in chosen]
        self.members = [of_one[2] for of_one in chosen]
        self.samples = [of_one[3] for of_one in chosen]
        self.epoch = [of_one[4] for of_one in chosen]
        self.last = [of_one[5] for of_one in chosen]  # batches of the last epoch

    def run(self) -> list[float | None]:
        """Make all steps."""
        if not self.names or not self.members:
            return [None] * len(self.all_members)
        turns, settings, phase, members = self.turns, self.settings, self.phase, self.members
        set_training(turns.model, turns.modules)
        self.stacked = turns.stacked(members)
        params = [self.stacked[name] for name in self.names]
        weighted = settings.class_weights != "none"
        own_loss = phase.loss is not None
        self.merged = Merged(
            [
                (
                    one.loss if own_loss else None, one.penalty, one.project,
                    _padded_weights(samples.y, self.samples) if weighted else None,
                    dict(member.attributes),
                )
                for one, samples, member in zip(self.phases, self.samples, members)
            ],
            turns.arrays,
        )  # fmt: skip
        self.loss = loss_of(settings)
        self.velocity = self._velocity()
        parts = step_parts(phase, settings, self.names, params, self.factor, self.velocity)
        if any(isinstance(part.optimizer, TorchOptimizer) for part in parts):
            raise CannotStack(f"the optimiser {settings.optimizer} is PyTorch's own")
        self.changed = [False] * len(self.merged.leaves)
        self.precision = step_precision(settings)
        self.holder = Holder(turns.model)
        self.draws = _Draws(turns.modules, members, params[0].device)
        augment = None if phase.learning_rate == 0 else find_augmentation(settings.augmentation, self.normalize)
        generators = [m.generator(self.place) for m in members]
        batches = _Batches(self.samples, self.sizes, self.epoch, generators, augment)
        losses = params[0].new_zeros(len(members), len(self.sizes[0]))
        groups = [list(self._groups(tick)) for tick in range(len(self.sizes[0]))]
        if augment is None:
            batches.plan([(clients, tick) for tick, group in enumerate(groups) for clients, _ in group])
        alike = Counter(self._shape(tick, rows) for tick, group in enumerate(groups) for _, rows in group)
        # A graph repeats what happens on the GPU, and nothing else.
        on_gpu = all(tensor.is_cuda for tensor in (params[0], *self.merged.leaves))
        with_graphs = on_gpu and _may_be_captured(parts)
        captured: dict[Any, _CapturedStep] = {}
        with ExitStack() as stack:
            norms = stack.enter_context(statistics_of(turns.modules, phase.move_statistics))
            for tick, group in enumerate(groups):
                done: list[Part] = []
                for clients, rows in group:
                    shape = self._shape(tick, rows)
                    batch = batches.next(clients, tick)
                    if shape in captured:
                        masks = self._masks(clients, rows, batch)
                        losses[rows, tick] = captured[shape].replay(batch, masks)
                        continue
                    done = [_part(part, rows) for part in parts]
                    lone = batch.y.shape[1] == 1 and bool(norms)
                    if lone:  # as in run_phase
                        set_mode(norms, False)
                    masks = self._masks(clients, rows, batch)
                    losses[rows, tick] = self._step(rows, batch, masks, done)
                    alike[shape] -= 1
                    # The first step of a shape runs as it is; what libraries set up for it is no part of a graph.
                    if with_graphs and shape is not None and alike[shape] >= _STEPS_OF_A_GRAPH:
                        made = _CapturedStep(partial(self._step, rows, parts=done), batch, masks)
                        with_graphs = made.worked
                        if with_graphs:
                            captured[shape] = made
                    if lone:
                        set_mode(norms, True)
                    for part, whole in zip(done, parts):
                        _put_back(part, whole, rows)
                for part, whole in zip(done, parts):  # how many steps there were, say
                    vars(whole.optimizer).update({k: v for k, v in vars(part.optimizer).items() if type(v) is int})
        return self._end(losses)

    def _shape(self, tick: int, rows: Rows) -> Any:
        """Return a key of steps that can be one graph, with the same clients and as many samples; None of others."""
        return (rows.start, rows.stop, self.sizes[rows.start][tick]) if isinstance(rows, slice) else None

    def _groups(self, tick: int) -> Iterator[tuple[list[int], Rows]]:
        """Yield the clients that step together: with batches of one size."""

        def kind(client: int) -> int:
            return self.sizes[client][tick]

        there = [client for client, sizes in enumerate(self.sizes) if len(sizes) > tick]
        for _, group in groupby(sorted(there, key=kind), kind):
            clients = list(group)
            if clients[-1] - clients[0] + 1 == len(clients):
                yield clients, slice(clients[0], clients[-1] + 1)
            else:
                yield clients, torch.tensor(clients, device=self.stacked[self.names[0]].device)

    def _masks(self, clients: list[int], rows: Rows, batch: Batch) -> list[Tensor]:
        """Draw the masks of dropout for clients' next step."""

        def probe(layers: Layers) -> None:
            copies = {name: array[rows].clone() for name, array in self.stacked.items()}
            trained = {name: copies.pop(name) for name in self.names}
            with torch.no_grad():
                self._losses(trained, copies, [leaf[rows].clone() for leaf in self.merged.leaves], batch, (), layers)

        return self.draws.masks(clients, probe, batch.y.shape[1])

    def _step(self, rows: Rows, batch: Batch, masks: Sequence[Tensor], parts: Sequence[Part]) -> Tensor:
        """Let clients make their next step; return the loss of each."""
        phase, settings, size = self.phase, self.settings, batch.y.shape[1]
        arrays = {name: array[rows] for name, array in self.stacked.items()}
        trained = {name: arrays.pop(name).requires_grad_() for name in self.names}
        leaves = [leaf[rows] for leaf in self.merged.leaves]
        versions = [leaf._version for leaf in leaves]

        losses = self._losses(trained, arrays, leaves, batch, masks)
        weight = settings.loss_weight(size)
        grads = list(torch.autograd.grad((weight * losses).sum(), list(trained.values()), allow_unused=True))
        if any(grad is None for grad in grads):
            raise CannotStack("the loss does not depend on all parameters that train")
        params = [param.detach() for param in trained.values()]
        held = {**arrays, **dict(zip(self.names, params))}
        limits = [part for part in parts if part.clip_norm is not None]
        if phase.penalty is not None or settings.clip_norm or limits:
            grads = self._for_each(self._adjust, held, grads, leaves, limits)
        for part in parts:
            part.optimizer.step([grads[index] for index in part.members])
            held.update(zip([self.names[index] for index in part.members], part.optimizer.params))
        if phase.project is not None:
            self._for_each(self._project, held, [], leaves, limits)
        if isinstance(rows, Tensor):
            for name, array in arrays.items():
                self.stacked[name].index_copy_(0, rows, array)
        for place, (leaf, version) in enumerate(zip(leaves, versions)):
            if leaf._version != version:
                self.changed[place] = True
                if isinstance(rows, Tensor):
                    self.merged.leaves[place].index_copy_(0, rows, leaf)
        return losses.detach()

    def _losses(
        self, trained: Mapping[str, Tensor], others: Mapping[str, Tensor], leaves: Sequence[Tensor], batch: Batch,
        masks: Sequence[Tensor], layers: Layers | None = None,
    ) -> Tensor:  # fmt: skip
        def of_one(trained: Any, others: Any, leaves: Any, batch: Any, masks: Any) -> Tensor:
            arrays = {**trained, **others}
            made = self.merged.made(leaves, arrays)
            loss, _, _, weights, attributes = made.value
            self.turns.set(attributes)
            weighed = nullcontext() if weights is None else weighing_with(weights)
            before = attributes_of(self.turns.modules)
            with layers or Layers(masks), weighed:
                total: Tensor = self.holder.call(loss or self.loss, arrays, Batch(*batch))
            made.require_unchanged()
            if not same_attributes(before, attributes_of(self.turns.modules)):
                raise CannotStack("the model keeps something from one step to the next that is no array of it")
            return total

        try:
            with self.precision:
                losses: Tensor = torch.vmap(of_one, randomness="error")(
                    dict(trained), dict(others), list(leaves), tuple(batch), list(masks)
                )
        finally:
            self.turns.reset()
        return losses

    def _adjust(self, made: Any, arrays: Mapping[str, Tensor], grads: list[Tensor], limits: Sequence[Part]) -> None:
        _, penalty, *_ = made.value
        if penalty is not None:
            penalty.add_gradient(self.names, [arrays[name] for name in self.names], grads)
        if self.settings.clip_norm:
            clip(grads, self.settings.clip_norm)
        for part in limits:
            clip([grads[index] for index in part.members], cast(float, part.clip_norm))

    def _project(self, made: Any, arrays: Mapping[str, Tensor], grads: list[Tensor], limits: Sequence[Part]) -> None:
        made.value[2](self.names, [arrays[name] for name in self.names])

    @torch.no_grad()
    def _for_each(
        self, change: Callable[..., None], arrays: Mapping[str, Tensor], grads: list[Tensor], leaves: list[Tensor],
        limits: Sequence[Part],
    ) -> list[Tensor]:  # fmt: skip
        """Let a function change gradients or arrays of each client, in place."""

        def of_one(arrays: Any, grads: Any, leaves: Any) -> Any:
            made = self.merged.made(leaves, arrays)
            with _OneByOne():
                change(made, arrays, grads, limits)
            made.require_unchanged()
            return grads if grads else arrays[self.names[0]]

        changed = torch.vmap(of_one)(dict(arrays), grads, leaves)
        return list(changed) if grads else []

    def _velocity(self) -> dict[str, Tensor] | None:
        """Return the momentum that clients have kept, stacked."""
        if not self.settings.momentum:
            return None
        velocities = [None if m.velocity is None else m.velocity.get(self.place, {}) for m in self.members]
        zeros = {name: torch.zeros_like(array[0]) for name, array in self.stacked.items() if name in set(self.names)}
        return {
            name: torch.stack([zero if of_one is None else of_one.get(name, zero) for of_one in velocities])
            for name, zero in zeros.items()
        }

    def _end(self, losses: Tensor) -> list[float | None]:
        """Give each client what has become of its arrays; return the mean losses of all."""
        on_cpu = losses.cpu()
        if self.merged.padded and not bool(torch.isfinite(on_cpu).all()):
            raise CannotStack("a phase uses all rows of a tensor with a row for each sample")
        means, of_each = {}, on_cpu.tolist()
        rows = zip(*(array.unbind() for array in self.stacked.values()))
        arrays = [dict(zip(self.stacked, of_one)) for of_one in rows]
        moves = bool(self.settings.optimizer == "sgd" and self.settings.momentum and self.phase.learning_rate != 0)
        for index, (member, sizes) in enumerate(zip(self.members, self.sizes)):
            member.start, member.arrays = None, arrays[index]
            self.merged.write_back(index, self.changed)
            if moves and member.velocity is not None and self.velocity:
                member.velocity[self.place] = {name: array[index].clone() for name, array in self.velocity.items()}
            last = slice(len(sizes) - self.last[index], len(sizes))
            means[id(member)] = summed(of_each[index][last], sizes[last]) / sum(sizes[last])
        return [means.get(id(member)) for member in self.all_members]


class Holder(nn.Module):
    """Calls functions of a model with other arrays in the place of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.parameter_names = [name for name, _ in model.named_parameters()]

    def forward(self, function: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Call a function of the model."""
        return function(self.model, batch)

    def call(self, function: Callable[..., Tensor], arrays: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Call it while the model has these arrays."""
        for name in self.parameter_names:
            if name in arrays:
                arrays[name]._is_param = True  # type: ignore[attr-defined]  # for isinstance(…, nn.Parameter)
        held = {f"model.{name}": array for name, array in arrays.items()}
        output: Tensor = torch.func.functional_call(self, held, (function, batch))
        for name, array in arrays.items():  # a buffer may have got a new tensor (`self.mean = …`), as in run_phase
            now = held[f"model.{name}"]
            if now is not array:
                if name in self.parameter_names or now.shape != array.shape or now.dtype != array.dtype:
                    raise CannotStack(f"the model puts another tensor in the place of {name}")
                array.copy_(now.detach())
        return output


class _CapturedStep:
    """A step as a CUDA graph: its kernels are started by one call, on other samples each time.

    ``worked`` tells whether it could be captured. Nothing has been computed then.
    """

    def __init__(self, step: Callable[..., Tensor], batch: Batch, masks: Sequence[Tensor]) -> None:
        self._inputs = [tensor.clone() for tensor in (*batch, *masks)]
        self._graph = torch.cuda.CUDAGraph()
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(now)
        self.worked = True
        with torch.cuda.stream(stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._losses = step(batch=Batch(*self._inputs[:3]), masks=self._inputs[3:])
            except RuntimeError as error:
                self.worked = False
                logger.info("steps run without CUDA graphs: %s", in_one_line(error))
            finally:
                with nullcontext() if self.worked else suppress(RuntimeError):
                    self._graph.capture_end()
        now.wait_stream(stream)

    def replay(self, batch: Batch, masks: Sequence[Tensor]) -> Tensor:
        """Make the step with these samples; return the loss of each client, until the next replay."""
        for mine, value in zip(self._inputs, (*batch, *masks)):
            mine.copy_(value)
        self._graph.replay()
        return self._losses


def _may_be_captured(parts: Sequence[Part]) -> bool:
    """Return whether all steps of a phase run the same kernels with the same numbers: Adam counts its steps."""
    return all(type(part.optimizer) is SGD for part in parts)


class _Batches:
    """The batches of many clients, each in its own order.

    ``augment`` changes the samples of a client with the numbers of its own generator.
    """

    def __init__(
        self, samples: Sequence[Samples], sizes: Sequence[Sequence[int]], epoch: Sequence[int],
        generators: Sequence[np.random.Generator], augment: Callable[[Tensor, Any], Tensor] | None,
    ) -> None:  # fmt: skip
        self.augment = augment
        # As run_phase does: rows of images are contiguous in channels_last.
        self._images = samples[0].x.dim() == 4
        rows = [x.permute(0, 2, 3, 1) if self._images else x for x, _ in samples]
        self._x, self._y = torch.cat(rows), torch.cat([y for _, y in samples])
        self._counts = [len(y) for _, y in samples]
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._sizes, self._epoch, self._generators = sizes, epoch, generators
        self._orders = [np.zeros(0, np.int64)] * len(samples)
        self._positions = [0] * len(samples)
        self._planned: deque[tuple[Tensor, Tensor]] = deque()

    def plan(self, steps: Sequence[tuple[Sequence[int], int]]) -> None:
        """Bring the order of the samples of all steps to where they are at once: else each step would wait for its."""
        places = [self._places(clients, tick) for clients, tick in steps]
        rows = [of_step + self._starts[list(clients)][:, None] for of_step, (clients, _) in zip(places, steps)]
        sizes = [of_step.size for of_step in places]
        both = [
            torch.from_numpy(np.concatenate([of_step.reshape(-1) for of_step in one])).to(self._y.device)
            for one in (places, rows)
        ]
        self._planned = deque(zip(torch.split(both[0], sizes), torch.split(both[1], sizes)))

    def _places(self, clients: Sequence[int], tick: int) -> Any:
        """Return which samples clients take next, clients × size of the batch."""
        size = self._sizes[clients[0]][tick]
        places = np.empty((len(clients), size), np.int64)
        for row, client in zip(places, clients):
            if tick % self._epoch[client] == 0:
                self._orders[client] = self._generators[client].permutation(self._counts[client])
                self._positions[client] = 0
            start = self._positions[client]
            row[:] = self._orders[client][start : start + size]
            self._positions[client] = start + size
        return places

    def next(self, clients: Sequence[int], tick: int) -> Batch:
        """Return the next batches of clients, which have one size."""
        if not self._planned:
            self.plan([(clients, tick)])
        positions, rows = self._planned.popleft()
        size = self._sizes[clients[0]][tick]
        x, y = self._x.index_select(0, rows), self._y.index_select(0, rows)
        if self._images:
            x = x.permute(0, 3, 1, 2)
        if self.augment is not None:
            x = self._augmented(x, clients, size)
        shape = (len(clients), size)
        return Batch(x.reshape(*shape, *x.shape[1:]), y.reshape(*shape, *y.shape[1:]), positions.reshape(shape))

    def _augmented(self, x: Tensor, clients: Sequence[int], size: int) -> Tensor:
        assert self.augment is not None
        generators = [self._generators[client] for client in clients]
        if self.augment is flip_crop:
            return flip_crop(x, cast(Any, _JoinedGenerators(generators)))
        return torch.cat([self.augment(part, rng) for part, rng in zip(torch.split(x, size), generators)])


class _JoinedGenerators:
    """Draws for several clients at once what the generator of each would."""

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self._generators = generators

    def integers(self, low: int, high: int, shape: tuple[int, int]) -> Any:
        each = shape[1] // len(self._generators)
        return np.concatenate([rng.integers(low, high, (shape[0], each)) for rng in self._generators], axis=1)

    def random(self, count: int) -> Any:
        return np.concatenate([rng.random(count // len(self._generators)) for rng in self._generators])


def torch_state(device: str = "cpu") -> Tensor:
    """Return the state of the generator from which torch draws on a device."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def set_torch_state(state: Tensor, device: str = "cpu") -> None:
    """Have torch draw on a device what follows a state."""
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


class _Draws:
    """The masks of dropout: each client's from the state of torch's generator that it has alone."""

    def __init__(self, modules: Sequence[nn.Module], members: Sequence[Member], device: torch.device) -> None:
        self._members, self._device = members, device
        self._drops = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in modules)
        self._seen: dict[int, list[tuple[Any, tuple[int, ...], float, torch.dtype]]] = {}

    def masks(self, clients: Sequence[int], probe: Callable[[Layers], None], size: int) -> list[Tensor]:
        """Return the masks by which the dropouts of a step multiply their inputs, clients × the input's shape."""
        if not self._drops:
            return []
        if size not in self._seen:
            layers = Layers(None)
            probe(layers)
            self._seen[size] = layers.noted
        drawn: list[list[Tensor]] = [[] for _ in self._seen[size]]
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            for client in clients:
                member = self._members[client]
                set_torch_state(member.state(), self._device.type)
                for masks, (function, shape, p, dtype) in zip(drawn, self._seen[size]):
                    # In the memory order of the input, in which alone a client draws.
                    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
                    ones = torch.ones(shape, dtype=dtype, device=self._device).contiguous(memory_format=order)
                    masks.append(function(ones, p, True))
                member.draws = torch_state(self._device.type)
        return [torch.stack(of_one) for of_one in drawn]


class Layers(TorchFunctionMode):
    """Has layers do what vmap can do, with equal results: dropout multiplies by masks, or is left out and noted."""

    def __init__(self, masks: Sequence[Tensor] | None) -> None:
        super().__init__()
        self._masks = None if masks is None else iter(masks)
        self.noted: list[tuple[Any, tuple[int, ...], float, torch.dtype]] = []

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.contiguous:  # the order in memory is none of the values
            return func(args[0])
        if func is F.adaptive_avg_pool2d and _size(*args, **kwargs) in (1, (1, 1), [1, 1]):
            return args[0].mean((-2, -1), keepdim=True)  # what it computes, without a loop over clients
        if func is F.batch_norm:
            return _BatchNorm.apply(*_norm(*args, **kwargs))
        if func not in _DROPOUTS:
            return func(*args, **kwargs)
        x, p, training = _dropout(*args, **kwargs)
        if not (training and p):
            return x
        if self._masks is None:
            self.noted.append((func, tuple(x.shape), p, x.dtype))
            return x
        mask = next(self._masks, None)
        if mask is None:
            raise CannotStack("dropout outside of a layer for it")
        return x * mask


class _BatchNorm(torch.autograd.Function):
    """BatchNorm of clients: that of one client with the channels of all, as vmap has none on a GPU."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        """Normalise."""
        return F.batch_norm(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Do nothing: outside of vmap this is never used."""

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, int]:
        """Normalise the samples of all clients."""
        count = info.batch_size
        x = x.expand(count, *x.shape).transpose(0, 1) if dims[0] is None else x.movedim(dims[0], 1)
        arrays = [
            array.expand(count, -1).reshape(-1) if dim is None else array.movedim(dim, 0).flatten()
            for array, dim in zip(arguments[:4], dims[1:5]) if array is not None
        ]  # fmt: skip
        present = iter(arrays)
        merged: list[Any] = [None if array is None else next(present) for array in arguments[:4]]
        out = F.batch_norm(x.flatten(1, 2), *merged, *arguments[4:])
        return out.reshape(len(out), count, -1, *out.shape[2:]), 1


def _norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    return input, running_mean, running_var, weight, bias, training, momentum, eps


def _size(input: Tensor, output_size: Any) -> Any:
    return output_size


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> tuple[Tensor, float, bool]:
    return input, p, training


class _OneByOne(TorchFunctionMode):
    """Does operations on lists of tensors tensor by tensor, as vmap has none of them."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not name.startswith("_foreach_"):
            return func(*args, **(kwargs or {}))
        whole, *others = args
        single = getattr(torch.Tensor, name[len("_foreach_") :])
        results = []
        for place, tensor in enumerate(whole):
            theirs = [other[place] if isinstance(other, (list, tuple)) else other for other in others]
            results.append(single(tensor, *theirs, **(kwargs or {})))
        return results


def _alike(phases: Sequence[Phase], arrays: Sequence[str], model: nn.Module) -> list[str]:
    """Return the names of the parameters that all phases train; require that the phases differ in nothing else."""
    first = phases[0]
    parameters = [name for name, _ in model.named_parameters() if name in set(arrays)]
    names = [name for name in parameters if first.train(name)]

    def about(phase: Phase) -> Any:
        groups = [
            (group.learning_rate, group.clip_norm, [name for name in names if group.selected(name)])
            for group in phase.groups
        ]
        return (
            phase.loss is None, phase.penalty is None, phase.project is None, phase.move_statistics,
            phase.learning_rate, phase.batch_size, phase.optimizer, phase.momentum, phase.weight_decay, groups,
            [name for name in parameters if phase.train(name)],
        )  # fmt: skip

    if any(phase.gradient is not None for phase in phases):
        raise CannotStack("a phase has a gradient of its own")
    if len(phases) < 2:
        raise CannotStack("there is one client")
    if any(about(phase) != about(first) for phase in phases[1:]):
        raise CannotStack("clients have different phases")
    return names


def _padded_weights(y: Tensor, of_all: Sequence[Samples]) -> Tensor:
    """Return the weights of the classes that a client has, and ones up to the last class that any has."""
    weights, classes = class_weights(y), max(int(samples.y.max()) for samples in of_all) + 1
    return torch.cat([weights, weights.new_ones(max(0, classes - len(weights)))])


def _part(part: Part, rows: Rows) -> Part:
    """Return the part for some of the clients: views of what the optimiser holds, or copies."""
    optimizer = object.__new__(type(part.optimizer))
    for name, value in vars(part.optimizer).items():
        setattr(optimizer, name, [tensor[rows] for tensor in value] if isinstance(value, list) else value)
    return part._replace(optimizer=optimizer)


def _put_back(part: Part, whole: Part, rows: Rows) -> None:
    """Copy what an optimiser for some of the clients holds, where these are copies, to that for all."""
    if isinstance(rows, Tensor):
        for name, value in vars(whole.optimizer).items():
            if isinstance(value, list):
                for tensor, updated in zip(value, vars(part.optimizer)[name]):
                    tensor.index_copy_(0, rows, updated)


def kind_of(phases: Sequence[Phase]) -> Any:
    """Return a key that differs between schedules that cannot run as one: how many phases, and by which code."""
    return [
        (getattr(phase.loss, "__code__", None), phase.loss is None, type(phase.penalty), phase.learning_rate)
        for phase in phases
    ]
