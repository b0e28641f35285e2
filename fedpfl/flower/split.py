"""The task of clients of which nothing is known but the names of their arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from .. import models
from ..core.errors import ConfigError, LayoutError, did_you_mean, printable
from ..core.sharing import Sharing
from ..methods import Method
from ..methods.bases.head import HeadMethod
from ..models.registry import NoHead
from ..models.skeleton import skeleton
from .keep import arrays_of, fits
from .messages import from_named, initial_of, numpy_of

logger = getLogger("flwr")

# How to go on from a saved result, which has the shared arrays alone.
OF_A_RESULT = "to go on from a saved result, start with {**model.state_dict(), **saved}"


class Split:
    """The split of a state dict into arrays that a method shares and those that stay on the nodes, by their names.

    ``keep`` are patterns of names that stay besides those of the method; ``head`` is the layer that is the head. What
    the nodes have of their own from earlier, as ``kept_before`` says, need not be among the arrays.
    """

    def __init__(
        self, method: Method, arrays: ArrayRecord, head: str, keep: Sequence[str], kept_before: bool = False
    ) -> None:
        if not arrays:
            raise ConfigError("initial_arrays", {}, "must be the state dict of the model")
        values = initial_of(arrays)
        self._types = {name: array.dtype for name, array in values.items()}
        self._require_types()
        self.order, self.keep, self._arrays = list(values), tuple(keep), arrays
        missing = [pattern for pattern in keep if not any(fits(pattern, name) for name in values)]
        if missing and not kept_before:
            message = f"no array is called so, lies below it or fits it; the arrays are {', '.join(values)}"
            raise ConfigError("keep", missing[0], f"{printable(message, 500)}; {OF_A_RESULT}")
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in values))
        below = any(fits(head, name) for name in values)
        if head and head not in layers and (below or not kept_before):
            message = f"must be a layer of initial_arrays{did_you_mean(head, layers)}; {OF_A_RESULT}"
            raise ConfigError("head", head, message)
        # A stand-in for a head that only the nodes have.
        gone = f"{head}.weight" if head and head not in layers else ""
        complete = {**values, gone: np.zeros((1, 1), np.float32)} if gone else values
        self.model = skeleton(complete, head)
        self.plain = models.plain_names(self.model)
        self.head = "" if isinstance(self.model.head, NoHead) else self.model.head_path
        # Who names arrays of the last layer has named the head.
        self._by_method = not (
            keep and isinstance(method, HeadMethod) and not head
            and (not self.head or any(fits(p, n) for p in keep for n in values if fits(self.head, n)))
        )  # fmt: skip
        self._method, self._guessed = method, isinstance(method, HeadMethod) and not head and self._by_method
        if isinstance(method, HeadMethod) and self._by_method and not self.head:
            message = f"must name what stays, as {method.name} keeps a head and no layer of {', '.join(values)} is one"
            raise ConfigError("keep", self.keep, printable(message, 500))
        self.sharing = Sharing(self.model, self.is_shared)
        names = {self.plain(name): name for name in self.model.state_dict()}
        if gone and self.is_shared(names[gone]):
            raise ConfigError("head", head, f"must be a layer of initial_arrays, as {method.name} shares it")
        floats = {self.plain(name) for name in self.sharing.shared}
        self.personal = [name for name in self.order if not self.is_shared(names[name])]
        # Arrays that are no floats, such as BatchNorm's counts: no mean is made of them.
        self.exact = {name: array for name, array in arrays.items() if name not in floats and name not in self.personal}
        self.initial = {name: values[name] for name in self.personal}
        # What the nodes are told: names, or patterns of those that only they have.
        self.kept = [*self.personal, *missing, *([f"{head}.*"] if gone else [])]
        self.places = [] if missing or gone else [self.order.index(name) for name in self.personal]

    def is_shared(self, name: str) -> bool:
        """Return whether an array of the model is shared, by its name there."""
        if any(fits(pattern, self.plain(name)) for pattern in self.keep):
            return False
        return not self._by_method or self._method.travels(name, self.model)

    def _require_types(self) -> None:
        """Refuse arrays of which no mean can be made, and names without a layer; tell which ones lose digits."""
        for name, kind in self._types.items():
            if name.startswith("."):
                raise ConfigError("initial_arrays", name, "is no name of an array, as it begins with a dot")
            if kind.kind not in "fiub":
                message = f"array {name!r} is {kind}, but shared arrays travel as float32"
                raise ConfigError("initial_arrays", name, message)
        if double := [name for name, kind in self._types.items() if kind == np.float64]:
            warning = "fedpfl: arrays of float64 (%s) are averaged as float32"
            logger.log(WARNING, warning, printable(", ".join(double), 200))

    def tell(self) -> None:
        """Log which arrays stay on the nodes, and a head that nobody has named."""
        if self.kept:
            logger.log(INFO, "fedpfl: personal, kept by each node: %s", printable(", ".join(self.kept), 500))
        if self.keep and not self.sharing.shared and not self.exact:
            logger.log(
                WARNING, "fedpfl: keep = %s covers all arrays: none is shared, and each node trains alone", self.keep
            )
        if self._guessed:
            warning = "fedpfl: %r is taken as the head, the last layer that may be linear: name it by head="
            logger.log(WARNING, warning, self.head)

    def take_shared(self, arrays: ArrayRecord) -> None:
        """Begin with the shared arrays among these."""
        self.sharing.set_shared(from_named(self.sharing.layout, arrays, self.plain))
        self.exact = {name: arrays[name] for name in self.exact}

    def takes(self, arrays: ArrayRecord) -> bool:
        """Return whether arrays are those that this split shares, without the personal ones."""
        return [*arrays] == [name for name in self.order if name not in self.initial]

    def shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the shared ones of the arrays, in their order."""
        return ArrayRecord({name: arrays[name] for name in self.order if name not in self.initial})

    def whole(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return shared arrays with the initial personal ones, in their order."""
        return ArrayRecord({name: arrays[name] if name in arrays else self._arrays[name] for name in self.order})

    def named(self, floats: Mapping[str, np.ndarray], exact: bool = True) -> ArrayRecord:
        """Return arrays in the initial order and types; unless ``exact``, whole numbers are floats, as in Flower."""
        made: dict[str, Array] = {}
        for name in self.order:
            if name in self.exact:
                kept = self.exact[name]
                made[name] = kept if exact else Array(np.asarray(kept.numpy(), np.float64))
            elif name in floats:
                made[name] = Array(np.asarray(floats[name], self._types[name], order="C"))
        return ArrayRecord(made)

    def unknown(self, record: ArrayRecord) -> list[str]:
        """Return the names in a reply that are neither shared nor personal here."""
        return [name for name in record if name not in self._types and not any(fits(one, name) for one in self.kept)]

    def floats_of(self, record: ArrayRecord) -> np.ndarray:
        """Return the shared arrays of a reply as one vector; refuse whole numbers of another form."""
        for name, expected in self.exact.items():
            if name not in record:
                continue
            array, wanted = numpy_of(name, record[name]), numpy_of(name, expected)
            if array.shape != wanted.shape or array.dtype.kind not in "iubf":
                arrived = f"{array.dtype} of shape {array.shape} arrived"
                raise LayoutError(f"array {name!r} must be {wanted.dtype} of shape {wanted.shape}; {arrived}")
        return from_named(self.sharing.layout, record, self.plain)

    def take_exact(self, contents: Collection[RecordDict]) -> None:
        """Take the lower median of what clients sent of whole numbers: no single client decides one."""
        records = [arrays_of(content)[1] for content in contents]
        for name, current in self.exact.items():
            kind = numpy_of(name, current).dtype
            sent: list[Any] = [numpy_of(name, record[name]) for record in records if name in record]
            if sent:
                ordered = np.sort(np.stack([np.asarray(array, kind) for array in sent]), axis=0)
                self.exact[name] = Array(np.asarray(ordered[(len(sent) - 1) // 2], kind, order="C"))
