"""The state of a model and a method besides the arrays that a client sends or stores, and how it comes back.

Clients take turns in one model of a process, and a device makes its model anew for each message. So what no message
carries and no client stores is, for each client's turn, what it was when it was built: buffers that are not persistent,
attributes of modules, and those of a user's method.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .errors import ConfigError
from .frozen import frozen
from .user_code import guarded

_STANDARD = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))
# Attributes of a module that PyTorch itself keeps there, or that say how it is used.
PYTORCHS = {*vars(nn.Module()), "training"}
CONTAINERS = (list, dict, set, deque, bytearray)
# What draws random numbers, and so is another after each.
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# PyTorch's layers that draw, some of them if they are asked to drop out.
DRAWING = (
    nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.RNNBase,
    nn.MultiheadAttention,
)  # fmt: skip
# What code may count or collect in.
DATA = (bool, int, float, complex, str, bytes, *CONTAINERS, *GENERATORS, Tensor, np.ndarray)
# Objects of these packages are taken as they are; others' are looked into, so deep at most.
LIBRARIES = {
    "torch", "numpy", "fedpfl", "torchvision", "timm", "transformers", "peft", "logging", "functools", "collections",
    "threading", "datetime", "typing", "abc", "weakref", "queue",
}  # fmt: skip
DEEPEST = 6


class _Buffer(NamedTuple):
    """A buffer of a module: its name there and in the model, and the tensor that others hold as well."""

    module: nn.Module
    short: str
    name: str
    tensor: Tensor


class ModelState:
    """Remembers what a model has besides parameters and persistent buffers, and brings it back."""

    def __init__(self, model: nn.Module) -> None:
        still = {id(array) for _, array in frozen(model)}
        persistent = model.state_dict(keep_vars=True).keys()
        self._modules = [(name, module) for name, module in model.named_modules()]
        self._buffers = list(_buffers(self._modules))
        self._names = [set(module._buffers) for _, module in self._modules]
        # A `train` of the user's may count its calls, or do more than set the mode: each turn has as many calls.
        watched = any(_is_own_switch(module) for _, module in self._modules)
        self._modes = [(module, module.training) for _, module in self._modules] if watched else []
        # With the number of its changes and a copy of what it holds.
        self._temporary = [
            (buffer, buffer.tensor._version, buffer.tensor.detach().clone())
            for buffer in self._buffers
            if buffer.name not in persistent and id(buffer.tensor) not in still
        ]
        self._attributes = [
            {name: _without_graph(value) for name, value in vars(module).items() if name not in PYTORCHS}
            for _, module in self._modules
        ]
        # What can be changed in place: by module and attribute.
        self._contents = {
            (place, name): copied(value)
            for place, attributes in enumerate(self._attributes)
            for name, value in attributes.items()
            if is_changeable(value)
        }

    def changed(self) -> list[str]:
        """Return the names of buffers that are not persistent, and of attributes, that are not as they were."""
        temporary = [
            buffer.name
            for buffer, version, _ in self._temporary
            if buffer.module._buffers.get(buffer.short) is not buffer.tensor or buffer.tensor._version != version
        ]
        return temporary + [
            f"{path}.{name}".lstrip(".")
            for place, ((path, module), before) in enumerate(zip(self._modules, self._attributes))
            if not is_usual(module)
            for name in self._changed(place, module, before)
        ]

    def _changed(self, place: int, module: nn.Module, before: dict[str, Any]) -> Iterator[str]:
        now = vars(module)
        for name in sorted(now.keys() | before.keys()):
            if name in PYTORCHS:
                continue
            if name not in now or name not in before or now[name] is not before[name]:
                if not (name in now and name in before and same(now[name], before[name])):
                    yield name
            elif (place, name) in self._contents and not same(now[name], self._contents[place, name]):
                yield name

    @torch.no_grad()
    def restore(self) -> None:
        """Bring back what the model had; persistent buffers are the old tensors again, whatever these hold."""
        for buffer in self._buffers:
            buffer.module._buffers[buffer.short] = buffer.tensor
        for (_, module), names in zip(self._modules, self._names):
            for name in module._buffers.keys() - names:  # made in a forward pass
                del module._buffers[name]
        for place, (buffer, version, content) in enumerate(self._temporary):
            if buffer.tensor._version != version:
                buffer.tensor.copy_(content)
                self._temporary[place] = buffer, buffer.tensor._version, content
        for module, mode in self._modes:
            module.training = mode
        for (_, module), before in zip(self._modules, self._attributes):
            now = vars(module)
            if len(now) != len(PYTORCHS) + len(before):
                for name in now.keys() - before.keys() - PYTORCHS:
                    del now[name]
            now.update(before)
        for (place, name), content in self._contents.items():
            module, value = self._modules[place][1], self._attributes[place][name]
            if not same(value, content):
                self._attributes[place][name] = vars(module)[name] = copied(content)


class OutsideState:
    """Sees what classes' code changes in the classes and in global variables, which a process's clients share."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._before = {key: (names, copied(names[key[1]])) for key, names in _outside(kinds)}

    def changed(self) -> list[str]:
        """Return the names of what has changed."""
        return sorted({
            name for (_, name), (names, before) in self._before.items() if not same(names.get(name), before)
        })  # fmt: skip


def _outside(kinds: Iterable[type]) -> Iterator[tuple[tuple[int, str], Mapping[str, Any]]]:
    """Yield (where, name) of each value that classes' code can reach outside of their objects, and the names there."""
    for kind in {base for one in kinds for base in one.__mro__}:
        if kind.__module__.partition(".")[0] in LIBRARIES | _STANDARD:
            continue
        for name, value in list(vars(kind).items()):
            if isinstance(value, DATA) and not name.startswith("__"):
                yield (id(kind), name), vars(kind)
            code, names = getattr(value, "__code__", None), getattr(value, "__globals__", {})
            for read in code.co_names if code is not None else ():
                if isinstance(names.get(read), DATA):
                    yield (id(names), read), names


class MethodState:
    """Remembers the attributes of a user's method, and brings them back; other methods keep nothing on themselves."""

    def __init__(self, method: Any) -> None:
        self._method, self._told = method, type(method).__module__.partition(".")[0] == "fedpfl"
        self._watched = not self._told
        self._before = self._now(method) if self._watched else {}
        self._outside = OutsideState([type(method)] if self._watched else [])

    @staticmethod
    def _now(method: Any) -> dict[str, Any]:
        kind = type(method)  # a cached property is an attribute of both
        return {name: copied(value) for name, value in vars(method).items() if not hasattr(kind, name)}

    def changed(self, method: Any) -> list[str]:
        """Return the attributes of the method, or of a copy, that are not as they were; each method is told of once."""
        if self._told:
            return []
        now, before = vars(method), self._before
        names = [name for name in now if name in before or not hasattr(type(method), name)]
        changes = [name for name in names if name not in before or not same(now[name], before[name])]
        self._told = bool(changes)
        return changes

    def changed_outside(self) -> list[str]:
        """Return the changes of the method's code to its class and to global variables; each is told of once."""
        changes = self._outside.changed()
        if changes:
            self._outside = OutsideState([])
        return changes

    def restore(self) -> None:
        """Bring back the attributes that the method had."""
        if self._watched:
            now = vars(self._method)
            for name in [name for name in now if name not in self._before and not hasattr(type(self._method), name)]:
                del now[name]
            now.update({name: copied(value) for name, value in self._before.items()})

    def copied(self, method: Any) -> Any:
        """Return a copy of the method for one client of several that take their turns at once."""
        self.restore()
        made = copy.copy(method)
        if self._watched:
            vars(made).update(self._now(method))
        return made


class ModelParts:
    """The modules and parameters of a model by name, looked up once: they stay the same objects while it trains.

    Modules may put new tensors in place of their buffers (``self.mean = …``). :meth:`keep_tensors` puts them into the
    old ones, for whatever is read from or written to a model by name, sent, stored or trained, are the tensors that it
    was built with.
    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_modules())
        self.modules = [module for _, module in named]
        self.parameters = list(model.named_parameters())
        self.parameter_names = [name for name, _ in self.parameters]
        self.frozen_names = [name for name, _ in frozen(model)]
        self._buffers = list(_buffers(named))
        self._places = [
            (module, short, f"{path}.{short}".lstrip("."), parameter)
            for path, module in named
            for short, parameter in module._parameters.items()
        ]
        self._counts = [(module, path, _count(module)) for path, module in named]

    @torch.no_grad()
    def keep_tensors(self) -> None:
        """Put new buffers into the old ones.

        ``ConfigError`` for one of another shape or type, for a new tensor in the place of a parameter, and for a new
        layer or parameter, which would neither train nor be the client's own.
        """
        for module, path, count in self._counts:
            if _count(module) != count:
                wrong = f"{path or 'it'} gets or loses parameters or layers after it was built; build makes all of them"
                raise ConfigError("model", type(module).__name__, wrong)
        for module, short, name, tensor in self._buffers:
            now = module._buffers.get(short)
            if now is tensor:
                continue
            if now is None or now.shape != tensor.shape or now.dtype != tensor.dtype:
                becomes = "nothing" if now is None else f"{tuple(now.shape)} of {_kind(now)}"
                wrong = f"its buffer {name}, {tuple(tensor.shape)} of {_kind(tensor)}, becomes {becomes} as it trains"
                raise ConfigError("model", type(module).__name__, f"{wrong}; it must keep its shape and type")
            tensor.copy_(now)
            module._buffers[short] = tensor
        for module, short, name, parameter in self._places:
            if module._parameters.get(short) is not parameter:
                wrong = f"puts another tensor in the place of its parameter {name} as it trains; change it in place"
                raise ConfigError("model", type(module).__name__, wrong)


def _count(module: nn.Module) -> int:
    """Return how many parameters and layers a module has itself."""
    return len(module._parameters) + len(module._modules)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Let the modules of a model put new tensors in place of their buffers: see :class:`ModelParts`."""
    parts = ModelParts(model)
    yield
    parts.keep_tensors()


def hidden_layers(model: nn.Module) -> list[str]:
    """Return the names of attributes that are or hold layers or parameters which the model does not have."""
    there, hidden = {id(parameter) for parameter in model.parameters()}, []
    for path, module in model.named_modules():
        for name, value in vars(module).items() if not is_usual(module) else ():
            if name in PYTORCHS:
                continue
            held = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            )
            layers = [one for one in held if isinstance(one, nn.Module)]
            parameters: list[Tensor] = [parameter for layer in layers for parameter in layer.parameters()]
            parameters += [one for one in held if isinstance(one, Tensor) and one.requires_grad and one.is_leaf]
            if any(id(parameter) not in there for parameter in parameters):
                hidden.append(f"{path}.{name}".lstrip("."))
    return hidden


def is_usual(module: nn.Module) -> bool:
    """Tell whether a module is PyTorch's or this package's, which keep nothing from one batch to the next."""
    return type(module).__module__.partition(".")[0] in ("torch", "fedpfl")


def has_own_code(model: nn.Module) -> bool:
    """Tell whether a model has layers of a user's."""
    return not {type(module).__module__.partition(".")[0] for module in model.modules()} <= LIBRARIES


def has_gradient_hooks(model: nn.Module) -> bool:
    """Tell whether hooks see or change the gradients of a model's parameters or layers."""
    layers = (module._backward_hooks or getattr(module, "_backward_pre_hooks", None) for module in model.modules())
    return any(layers) or bool(hooked_parameters(model))


def draws(model: nn.Module) -> bool:
    """Tell whether a forward or backward pass of a model may draw random numbers: foreign code might."""
    return has_gradient_hooks(model) or any(
        not is_usual(module) or isinstance(module, DRAWING) or module._forward_hooks or module._forward_pre_hooks
        or "forward" in vars(module) for module in model.modules()
    )  # fmt: skip


def hooked_parameters(model: nn.Module) -> list[str]:
    """Return the names of parameters whose gradients have hooks (``Tensor.register_hook``)."""
    return [name for name, parameter in model.named_parameters() if parameter._backward_hooks]


def require_possible_hooks(model: nn.Module, name: str) -> None:
    """Raise ``ConfigError`` for hooks that would never be called."""
    for path, parameter in model.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            allowed = "which is never called, as gradients are not accumulated: use register_hook"
            raise ConfigError("model", name, f"its parameter {path} has a post_accumulate_grad_hook, {allowed}")


def require_plain_state_dict(model: nn.Module, name: str) -> None:
    """Raise ``ConfigError`` if a model's state dict is not its parameters and persistent buffers under their names.

    What a client sends and keeps is taken from the state dict and written to its arrays: a hook that renames them, or
    leaves out, adds or copies one, would part what trains from what counts.
    """
    arrays = {
        f"model.{path}.{short}".replace("..", "."): array
        for path, module in model.named_modules(remove_duplicate=False)
        for short, array in (*module._parameters.items(), *module._buffers.items())
        if array is not None and short not in module._non_persistent_buffers_set
    }
    # As part of another module, in whose state dict all have a prefix.
    in_dict = guarded("model", name, nn.ModuleDict({"model": model}).state_dict)(keep_vars=True)
    for key in in_dict:
        if key.endswith("_extra_state"):
            allowed = f"keeps a state by get_extra_state ({key.partition('.')[2]}), which is no array of the model"
            raise ConfigError("model", name, f"{allowed}: make it a buffer")
    for key in (key for key in (*arrays, *in_dict) if in_dict.get(key) is not arrays.get(key)):
        changed = "has a copy of" if key in in_dict and key in arrays else "adds" if key in in_dict else "lacks"
        allowed = "must be its parameters and buffers: remove the hook of its state dict"
        raise ConfigError("model", name, f"its state_dict() {changed} {key.partition('.')[2]}; it {allowed}")


def _is_own_switch(module: nn.Module) -> bool:
    """Tell whether a module has a `train` or `eval` that is not PyTorch's."""
    kind = type(module)
    theirs = (
        kind.train is nn.Module.train and kind.eval is nn.Module.eval and not vars(module).keys() & {"train", "eval"}
    )
    return not theirs and not is_usual(module)


def attributes_of(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    """Return the attributes of the modules that are somebody else's, with copies of the containers among them."""
    return [
        {name: value if isinstance(value, (Tensor, np.ndarray)) else copied(value)
         for name, value in vars(module).items() if name not in PYTORCHS}
        for module in modules
        if not is_usual(module)
    ]  # fmt: skip


def same_attributes(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Tell whether no module's attribute has been replaced or changed from one time to the other."""
    return all(
        first.keys() == second.keys() and all(
            first[name] is second[name] if isinstance(first[name], Tensor) else same(first[name], second[name])
            for name in first
        )
        for first, second in zip(one, other)
    )  # fmt: skip


def _buffers(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[_Buffer]:
    for path, module in modules:
        for short, tensor in module._buffers.items():
            if tensor is not None:
                yield _Buffer(module, short, f"{path}.{short}".lstrip("."), tensor)


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).partition(".")[2]


def _without_graph(value: Any) -> Any:
    """Return a tensor that was computed from parameters (torch's old weight norm) as one that can be copied."""
    return value.detach() if isinstance(value, Tensor) and value.grad_fn is not None else value


def is_changeable(value: Any) -> bool:
    """Tell whether a value can be another one without being replaced, and is looked into."""
    return isinstance(value, (*CONTAINERS, *GENERATORS, Tensor, np.ndarray)) or _is_object(value)


def _is_object(value: Any) -> bool:
    """Tell whether a value is a plain object of a class of the user's."""
    kind = type(value)
    if isinstance(value, (type, nn.Module, Tensor, *CONTAINERS)) or not hasattr(value, "__dict__"):
        return False
    package = kind.__module__.partition(".")[0]
    plain = all("__new__" not in vars(base) for base in kind.__mro__[:-1])
    return plain and package not in LIBRARIES and package not in _STANDARD


def copied(value: Any, depth: int = 0) -> Any:
    """Return a copy of a value that can change, with what it holds of such values; other things are the same."""
    if isinstance(value, nn.Parameter):  # in a second place, as in the list of all weights of an LSTM: it is no state
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Generator):
        made = torch.Generator(value.device)
        made.set_state(value.get_state())
        return made
    if isinstance(value, GENERATORS):
        return copy.deepcopy(value)
    if depth == DEEPEST:
        return value
    if isinstance(value, dict) and type(value) is dict:
        return {key: copied(inner, depth + 1) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(inner, depth + 1) for inner in value)
    if _is_object(value):
        made = object.__new__(type(value))
        vars(made).update({name: copied(inner, depth + 1) for name, inner in vars(value).items()})
        return made
    return value.copy() if isinstance(value, CONTAINERS) else value


def _drawn(generator: Any) -> Any:
    """Return the state from which a generator will draw."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Tell whether two values are alike, as far as that can be told without calling anybody's code."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, GENERATORS):
        return same(_drawn(one), _drawn(other))
    if depth < DEEPEST and _is_object(one):
        one, other = vars(one), vars(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(same(a, b, depth + 1) for a, b in zip(one, other))
    return isinstance(one, (int, float, str, bytes, bytearray, complex, set, frozenset)) and bool(one == other)
