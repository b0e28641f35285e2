"""Merges what several clients' phases hold into one that stands for all of them, for ``torch.vmap``.

A method writes its loss or penalty for one client, as a function or an object that holds the client's tensors. Those of
several clients are merged by structure: same code, same attributes, same numbers. Tensors in the same place become one
tensor with an axis more, which ``vmap`` maps over. What differs in another way becomes an object that cannot be used.
"""

from __future__ import annotations

import types
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..core.samples import Samples
from ..core.sharing import Received


class CannotStack(Exception):
    """Some clients cannot train as one batch; the message says why, in a few words."""


# What may be compared by value.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, types.BuiltinFunctionType)

_HOLDERS = (list, tuple, dict, types.MethodType, partial)


class Merged:
    """One object in the place of those of several clients.

    ``model_arrays`` are the arrays of the model in which all clients take turns, by name. An object that holds one of
    them holds the client's own afterwards.
    """

    def __init__(self, objects: Sequence[Any], model_arrays: Mapping[str, Tensor]) -> None:
        self._names = {id(array): name for name, array in model_arrays.items()}
        self._memory = {array.untyped_storage().data_ptr() for array in model_arrays.values() if array.numel()}
        self._makers: dict[tuple[int, ...], Maker] = {}
        self._open: set[tuple[int, ...]] = set()
        # The tensors that clients do not have in common, stacked, and those of each client that they were made of.
        self.leaves: list[Tensor] = []
        self.parts: list[list[Tensor]] = []
        # Whether a leaf was filled up with NaN, because clients have different numbers of samples.
        self.padded = False
        self._alive = objects  # ids stay valid
        self._make = self._merge(list(objects))

    def made(self, leaves: Sequence[Tensor], arrays: Mapping[str, Tensor]) -> MergedObject:
        """Return the object for some of the clients, of which these are the leaves and the model's arrays."""
        made = MergedObject(leaves, arrays)
        made.value = self._make(made)
        return made

    def write_back(self, place: int, changed: Sequence[bool]) -> None:
        """Copy the leaves that steps have changed into the tensors of the client at ``place``."""
        for leaf, parts, moved in zip(self.leaves, self.parts, changed):
            if moved:
                part = parts[place]
                part.copy_(leaf[place][tuple(slice(size) for size in part.shape)])

    def _merge(self, values: list[Any]) -> Maker:
        key = tuple(map(id, values))
        if key in self._open:
            raise CannotStack(f"{type(values[0]).__name__} refers to itself")
        if key not in self._makers:
            self._open.add(key)
            maker = self._merged(values)
            self._open.remove(key)
            self._makers[key] = lambda made: made.once(key, maker)
        return self._makers[key]

    def _merged(self, values: list[Any]) -> Maker:
        first = values[0]
        if isinstance(first, Tensor):
            return self._tensor(values)
        if all(value is first for value in values) and not _may_hold_arrays(first):
            return lambda made: first
        if any(type(value) is not type(first) for value in values):
            raise CannotStack("what phases hold is not alike")
        if isinstance(first, _PLAIN):
            return (lambda made: first) if all(value == first for value in values) else _differing(first)
        if isinstance(first, Received):
            # Clients that got the same vector have the same arrays.
            if first.same_as(values[1:]):
                return lambda made: first
            values = [dict(value) for value in values]
            first = values[0]
            self._alive = (self._alive, values)
        if isinstance(first, Samples):  # a step gets its samples in the batch
            return _differing(first)
        if isinstance(first, dict):
            if any(value.keys() != first.keys() for value in values):
                return _differing(first)
            return self._filled({name: [value[name] for value in values] for name in first}, lambda: type(first)())
        if isinstance(first, (tuple, list)):
            if any(len(value) != len(first) for value in values):
                return _differing(first)
            items = [self._merge(list(item)) for item in zip(*values)]
            kind: Any = type(first)
            of_items = (lambda merged: kind(*merged)) if hasattr(first, "_fields") else kind
            return lambda made: of_items([item(made) for item in items])
        if isinstance(first, types.FunctionType):
            return self._function(values)
        if isinstance(first, types.MethodType):
            owner, function = (self._merge([getattr(v, n) for v in values]) for n in ("__self__", "__func__"))
            return lambda made: types.MethodType(function(made), owner(made))
        if isinstance(first, partial):
            whole = self._merge([(value.func, value.args, value.keywords) for value in self._kept(values)])

            def called(made: MergedObject) -> Any:
                function, args, keywords = whole(made)
                return partial(function, *args, **keywords)

            return called
        if hasattr(first, "__dict__") and not isinstance(first, type):
            return self._object(values)
        return _differing(first)

    def _kept(self, values: list[Any]) -> list[Any]:
        self._alive = (self._alive, values)
        return values

    def _tensor(self, values: list[Tensor]) -> Maker:
        first = values[0]
        same = all(value is first for value in values)
        if same and id(first) in self._names:
            name = self._names[id(first)]
            return lambda made: made.arrays[name]
        if any(value.numel() and value.untyped_storage().data_ptr() in self._memory for value in values):
            raise CannotStack("a phase holds a view of the model's arrays")
        if same:
            return lambda made: first
        place = len(self.leaves)
        self.leaves.append(self._stacked(values))
        self.parts.append(values)
        return lambda made: made.leaves[place]

    def _stacked(self, values: Sequence[Tensor]) -> Tensor:
        first = values[0].detach()
        if any((v.dtype, v.device, v.dim()) != (first.dtype, first.device, first.dim()) for v in values):
            raise CannotStack("tensors that phases hold are not alike")
        if all(value.shape == first.shape for value in values):
            return torch.stack([value.detach() for value in values])
        if not first.is_floating_point():
            raise CannotStack("tensors that phases hold differ in shape")
        # Rows of samples, of which clients have different numbers. Who uses what is not there gets NaN, and is found.
        self.padded = True
        shape = [max(sizes) for sizes in zip(*(value.shape for value in values))]
        out = first.new_full([len(values), *shape], float("nan"))
        for row, value in zip(out, values):
            row[tuple(slice(size) for size in value.shape)].copy_(value.detach())
        return out

    def _function(self, values: list[Any]) -> Maker:
        first = values[0]
        if any(value.__code__ is not first.__code__ for value in values):
            raise CannotStack("phases call different functions")
        try:
            cells = [[cell.cell_contents for cell in value.__closure__ or ()] for value in values]
        except ValueError:
            raise CannotStack(f"{first.__name__} holds what is not there yet") from None
        contents = [self._merge(list(of_cell)) for of_cell in zip(*cells)]
        defaults = self._merge(self._kept([value.__defaults__ for value in values]))
        keywords = self._merge(self._kept([value.__kwdefaults__ for value in values]))

        def make(made: MergedObject) -> Any:
            closure = tuple(types.CellType(content(made)) for content in contents)
            for cell in closure:
                made.cells.append((cell, cell.cell_contents))
            function = types.FunctionType(
                first.__code__, first.__globals__, first.__name__, defaults(made), closure or None
            )
            function.__kwdefaults__ = keywords(made)
            return function

        return make

    def _object(self, values: list[Any]) -> Maker:
        first, attributes = values[0], [vars(value) for value in values]
        if any(of_one.keys() != attributes[0].keys() for of_one in attributes):
            raise CannotStack(f"{type(first).__name__} has other attributes for other clients")
        filled = self._filled({name: [of_one[name] for of_one in attributes] for name in attributes[0]}, dict)

        def make(made: MergedObject) -> Any:
            merged = object.__new__(type(first))
            vars(merged).update(filled(made))
            made.held.append((vars(merged), dict(vars(merged))))
            return merged

        return make

    def _filled(self, content: Mapping[Any, list[Any]], empty: Callable[[], Any]) -> Maker:
        makers = {name: self._merge(values) for name, values in content.items()}

        def make(made: MergedObject) -> Any:
            container = empty()
            for name, maker in makers.items():
                container[name] = maker(made)
            made.held.append((container, dict(container)))
            return container

        return make


class MergedObject:
    """A merged object as it is for one call, and what tells whether the call has changed it."""

    value: Any

    def __init__(self, leaves: Sequence[Tensor], arrays: Mapping[str, Tensor]) -> None:
        self.leaves, self.arrays = leaves, arrays
        self.held: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.cells: list[tuple[Any, Any]] = []
        self._made: dict[tuple[int, ...], Any] = {}

    def once(self, key: tuple[int, ...], maker: Maker) -> Any:
        """Return the object that was made before under a key, or make it: one object stays one."""
        if key not in self._made:
            self._made[key] = maker(self)
        return self._made[key]

    def require_unchanged(self) -> None:
        """Raise ``CannotStack`` if the call has put something else into what clients hold."""
        moved = any(cell.cell_contents is not before for cell, before in self.cells)
        for now, before in self.held:
            moved = moved or now.keys() != before.keys() or any(now[name] is not before[name] for name in now)
        if moved:
            raise CannotStack("a phase keeps something from one step to the next")


Maker = Callable[[MergedObject], Any]


def _may_hold_arrays(value: Any) -> bool:
    """Return whether a value that clients have in common could hold arrays of the model, which others replace."""
    held = value.__closure__ is not None if isinstance(value, types.FunctionType) else isinstance(value, _HOLDERS)
    return bool(held)


def _differing(first: Any) -> Maker:
    stand_in = _Differing(type(first).__name__)
    return lambda made: stand_in


class _Differing:
    """Stands for a value that clients do not have in common, and refuses to be used."""

    def __init__(self, kind: str) -> None:
        object.__setattr__(self, "_kind", kind)

    def __getattr__(self, name: str) -> Any:
        self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CannotStack(f"a phase uses {object.__getattribute__(self, '_kind')} values that differ between clients")


_OPERATIONS = (
    "abs add and array bool bytes call complex contains copy deepcopy delitem divmod enter eq float floordiv "
    "format ge getitem gt hash index int invert iter le len lshift lt matmul mod mul ne neg next or pos pow radd "
    "rand rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv "
    "rxor setattr setitem str sub truediv xor"
)
for _name in _OPERATIONS.split():
    setattr(_Differing, f"__{_name}__", _Differing._refuse)
