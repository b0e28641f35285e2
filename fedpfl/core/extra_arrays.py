"""The arrays that travel alongside the shared vector, each declared once.

A method lists them as :class:`Extra`. All that has to know of them reads that list: :class:`Extras` checks and packs
them at both ends, differential privacy bounds those that clients send, and the documentation names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Tuple, Union

import numpy as np

from .errors import LayoutError
from .layout import DTYPES, decode, encode

SERVER, CLIENT, BOTH = "server", "client", "both"
# Sizes that are not numbers: that of the shared vector; any number, which the receiver counts.
SHARED, ANY = "shared", "any"
# What differential privacy measures an array from, unless it is a copy of one of the model's.
ZEROS, RECEIVED = "zeros", "received"

Size = Union[int, str]
Shape = Tuple[Size, ...]

# What the values of an array may be (`Extra.kind`).
COUNTS, SHARES, COVARIANCE, POSITIVE, MEANS = "counts", "shares", "covariance", "positive", "means"
CHANGE = "change"
KINDS = ("", COUNTS, SHARES, COVARIANCE, POSITIVE, MEANS, CHANGE)
# Rounding of what travels.
ROUNDED = 1e-3

# Names of arrays that every message may have.
OWN = frozenset({"shared", "shared-kept"})


@dataclass(frozen=True)
class Extra:
    """An array that travels alongside the shared vector.

    Parameters
    ----------
    name : str
        Its name in messages, replies and checkpoints.
    to : str
        ``server``: replies to ``train`` carry it; ``client``: the server may attach it to a message; ``both``.
    about : str
        What it is, in a few words, for the documentation.
    shape : tuple of int or str, or a callable, model → such a tuple
        ``shared`` stands for the number of shared values. One size may be ``any``: the receiver counts.
    copy_of : callable, model → str, optional
        The array is a copy of the model's array of that state-dict name. The shape follows from it, and differential
        privacy bounds the copy from the values that all clients start with.
    exact : str, optional
        NumPy type in which the array travels as it is, for example ``uint8`` for a mask. Without it the array is of
        floats, travels in ``wire-dtype`` and arrives as float32.
    required : bool
        Whether a reply without the array is refused before the rule sees it. If it is false, ``conclude`` may leave
        the array out, and the rule looks for it in ``reply.arrays``. The server may always leave an array out, whatever
        this says: a method asks ``local.has_received``.
    private_from : str
        What differential privacy bounds the array from, unless it is a copy: ``zeros``, or ``received``, the array of
        this name that the server sent with the message (zeros where it sent none).
    kind : str
        What its values are, which each reply is checked for: ``counts`` (of the client's samples, whole and none
        negative), ``shares`` (none negative, at most 1 together), ``positive`` (none negative), ``covariance``
        (symmetric and positive semidefinite), ``means`` (each row a mean of features, or zeros), ``change`` (what
        training changed in weights), or anything. Of the last four ``update-norm-limit`` compares the norm: with that
        of others, of means the more strictly, or as that of an update.
    bounds : pair of float, optional
        The lowest and highest value that an array may have whose norm says nothing.

    Examples
    --------
    Clients send the mean of their features, and get everybody's:

    >>> import fedpfl
    >>> means = fedpfl.Extra("means", "both", "mean of the features", lambda model: fedpfl.class_by_width(model)[1:])
    >>> means.goes("server"), means.goes("client")
    (True, True)
    """

    name: str
    to: str
    about: str
    shape: Shape | Callable[[Any], Shape] = ()
    copy_of: Callable[[Any], str] | None = None
    exact: str = ""
    required: bool = True
    private_from: str = ZEROS
    kind: str = ""
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"array {self.name!r}: kind is {self.kind!r}, not {', '.join(filter(None, KINDS))}")
        if self.to not in (SERVER, CLIENT, BOTH):
            raise ValueError(f"array {self.name!r}: to is {self.to!r}, not {SERVER}, {CLIENT} or {BOTH}")
        if self.name in OWN:
            raise ValueError(f"array {self.name!r}: the shared vector travels under this name")
        if self.exact and np.dtype(self.exact).kind not in "biuf":
            raise ValueError(f"array {self.name!r}: {self.exact} is not a number type")
        if self.private_from not in (ZEROS, RECEIVED):
            raise ValueError(f"array {self.name!r}: private_from is {self.private_from!r}, not {ZEROS} or {RECEIVED}")
        if self.private_from == RECEIVED and self.to != BOTH:
            raise ValueError(
                f"array {self.name!r}: private_from = {RECEIVED} needs an array that the server sends, too"
            )

    def goes(self, to: str) -> bool:
        """Tell whether the array travels to ``server`` or ``client``."""
        return self.to in (to, BOTH)


class Extras:
    """The extras of a run: checks them, packs them for a message and takes them out of one.

    Shapes follow from the initial ``model`` and ``shared``, the number of shared values; floats travel in
    ``wire_dtype``.
    """

    def __init__(
        self, declared: Iterable[Extra] = (), model: Any = None, shared: int = 0, wire_dtype: str = "float32"
    ) -> None:
        self._wire_dtype = wire_dtype
        self._declared: dict[str, Extra] = {}
        self._shapes: dict[str, Shape] = {}
        self._first: dict[str, np.ndarray] = {}
        self.copies: dict[str, str] = {}
        for extra in declared:
            if extra.name in self._declared:
                raise ValueError(f"array {extra.name!r} is declared twice")
            self._declared[extra.name] = extra
            if extra.copy_of is not None:
                source = extra.copy_of(model)
                self.copies[extra.name] = source
                self._first[extra.name] = model.state_dict()[source].detach().cpu().numpy().copy()
                self._shapes[extra.name] = self._first[extra.name].shape
            else:
                shape = extra.shape(model) if callable(extra.shape) else extra.shape
                self._shapes[extra.name] = tuple(shared if size == SHARED else size for size in shape)

    @property
    def shapes(self) -> dict[str, Shape]:
        """The declared shape of each array, by name."""
        return dict(self._shapes)

    def to_text(self) -> str:
        """Return names and shapes as one line, for a comparison."""
        return ", ".join(f"{name} {'x'.join(map(str, shape)) or 1}" for name, shape in sorted(self._shapes.items()))

    def names(self, to: str) -> list[str]:
        """Return the names of the arrays that travel to ``server`` or ``client``."""
        return [name for name, extra in self._declared.items() if extra.goes(to)]

    def compared(self) -> list[str]:
        """Return the names of the arrays that clients send and whose norms are compared with those of others."""
        declared = (self._declared[name] for name in self.names(SERVER))
        return [
            extra.name for extra in declared if extra.kind in ("", COVARIANCE, MEANS, CHANGE) and extra.bounds is None
        ]

    def check(self, arrays: Mapping[str, np.ndarray], samples: int) -> None:
        """Raise ``LayoutError`` for an array of a client with so many samples that is not what it is declared to be."""
        for name, array in arrays.items():
            extra = self._declared[name]
            low, high = extra.bounds or (-np.inf, np.inf)
            if array.size and not (array.min() >= low and array.max() <= high):
                raise LayoutError(f"its array {name!r} must be from {low:g} to {high:g}; {array.flat[0]:g} arrived")
            if extra.kind in (COUNTS, SHARES, POSITIVE) and array.size and array.min() < 0:
                raise LayoutError(f"its array {name!r} has negative values")
            most = {COUNTS: samples, SHARES: 1}.get(extra.kind)
            if most is not None and (total := float(array.sum(dtype=np.float64))) > most * (1 + ROUNDED):
                what = "samples, the client" if extra.kind == COUNTS else "in all, at most"
                raise LayoutError(f"its array {name!r} has {total:g} {what} {most}")
            if extra.kind == COUNTS and (array != np.rint(array)).any():
                raise LayoutError(f"its array {name!r} counts parts of samples")
            if extra.kind == COVARIANCE and not _is_covariance(array.astype(np.float64)):
                raise LayoutError(f"its array {name!r} is no covariance: not symmetric, or with negative eigenvalues")

    def are_means(self, name: str) -> bool:
        """Tell whether an array is declared to be means of features, which are about as long at all clients."""
        return self._declared[name].kind == MEANS

    def is_like_shared(self, name: str) -> bool:
        """Tell whether an array is declared as a change of weights, or has a value for each shared one."""
        return self._declared[name].shape == (SHARED,) or self._declared[name].kind == CHANGE

    def pack(self, arrays: Mapping[str, np.ndarray], to: str) -> dict[str, np.ndarray]:
        """Return shaped arrays as the vectors in which they travel; ``LayoutError`` for one that is not as declared."""
        packed = {}
        for name, array in arrays.items():
            exact = self._expected(name, to).exact
            if array.shape != self._shape(name, array.size) or (exact and array.dtype.name != exact):
                raise LayoutError(f"{self._unlike(name, array)} was about to be sent")
            flat = np.ascontiguousarray(array).reshape(-1)
            packed[name] = flat if exact else encode(flat, self._wire_dtype)
        return packed

    def read(self, arrays: Mapping[str, np.ndarray], to: str) -> dict[str, np.ndarray]:
        """Return the arrays that arrived alongside the shared vector, shaped, floats as float32.

        It comes from the network: an array that is not as declared, or not finite, or missing though required, raises
        ``LayoutError``.
        """
        decoded = {}
        for name, sent in arrays.items():
            if name in OWN:
                continue
            exact, shape = self._expected(name, to).exact, self._shape(name, sent.size)
            proper = sent.dtype.name == exact if exact else sent.dtype.name in DTYPES
            if not proper or shape is None or sent.ndim != 1:
                raise LayoutError(f"{self._unlike(name, sent)} arrived")
            if not np.isfinite(sent).all():
                raise LayoutError(f"array {name!r} arrived with values that are not finite")
            decoded[name] = (np.ascontiguousarray(sent, exact) if exact else decode(sent)).reshape(shape)
        for name in self.names(to):
            if to == SERVER and name not in decoded and self._declared[name].required:
                raise LayoutError(f"a reply without the array {name!r} arrived")
        return decoded

    def private_starts(self, received: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays from which those that clients send are bounded, by name; the others are bounded from 0."""
        theirs = {name for name in self.names(SERVER) if self._declared[name].private_from == RECEIVED}
        return {**self._first, **{name: received[name] for name in theirs & received.keys()}}

    def _expected(self, name: str, to: str) -> Extra:
        extra = self._declared.get(name)
        if extra is None or not extra.goes(to):
            raise LayoutError(f"array {name!r}: the method declares none of this name that goes to the {to}")
        return extra

    def _shape(self, name: str, count: int) -> tuple[int, ...] | None:
        """Return the declared shape of an array of that many values; None if it cannot have as many."""
        shape = self._shapes[name]
        least = int(np.prod([size for size in shape if isinstance(size, int)]))
        if ANY in shape:
            return None if not least or count % least else tuple(count // least if n == ANY else int(n) for n in shape)
        return tuple(map(int, shape)) if count == least else None

    def _unlike(self, name: str, array: np.ndarray) -> str:
        wanted = " × ".join(map(str, self._shapes[name])) or "1"
        kind = self._declared[name].exact or " or ".join(DTYPES)
        return f"array {name!r} is to be {wanted} values of {kind}; {array.dtype} of shape {array.shape}"


def _is_covariance(array: np.ndarray) -> bool:
    """Tell whether a matrix is symmetric and positive semidefinite, as far as its rounding tells."""
    largest = np.abs(array).max()
    if largest == 0:
        return True
    array = array / largest
    if np.abs(array - array.T).max() > ROUNDED:
        return False
    try:
        np.linalg.cholesky((array + array.T) / 2 + ROUNDED * len(array) ** 0.5 * np.eye(len(array)))
    except np.linalg.LinAlgError:
        return False
    return True
