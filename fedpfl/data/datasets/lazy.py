"""Samples that are read when they are needed, for data that do not fit into the memory."""

from __future__ import annotations

import hashlib
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from ...core import references, rng, user_code
from ...core.errors import ConfigError, DataError
from ...core.samples import Samples
from ..arrays import has
from ..dataset import Dataset
from ..settings import DataSettings

if TYPE_CHECKING:
    import torch

# Of so many samples, spread over all, a run knows the inputs; and of so many of these whether they are always the same.
HASHED, COMPARED = 64, 16


def has_places(thing: object) -> bool:
    """Tell whether an object has samples by their numbers, as a torch Dataset has that is not iterable alone."""
    torch = torch_data()
    if torch is not None and isinstance(thing, torch.Dataset):
        return not isinstance(thing, torch.IterableDataset)
    if isinstance(thing, (list, tuple, str, bytes, type, Mapping)):
        return False
    if any(has(thing, other) for other in ("__array__", "toarray", "keys")):
        return False
    defined = {name for kind in type(thing).__mro__ for name in vars(kind)}  # an Enum's own type has both, too
    return {"__getitem__", "__len__"} <= defined


def torch_data() -> Any:
    """Return the module ``torch.utils.data`` if it is loaded; without it nothing can be one of its objects."""
    return sys.modules.get("torch.utils.data")


class Lazy:
    """A data set whose samples are read when a batch needs them, and not kept: for data larger than the memory.

    It takes the place of the torch Dataset that it is made of, in ``fedpfl.run(data=…)``, in lists and pairs, and in a
    function of your own for devices. Numbers are the same to the bit as without it, as long as the Dataset gives the
    same sample each time. Random transforms draw again at each reading, from the generators of torch, NumPy and
    Python, which are seeded for each client and round. Each worker process reads the samples of its own clients.

    Parameters
    ----------
    samples : torch.utils.data.Dataset
        Or an object with ``__len__`` and ``__getitem__``, whose samples are pairs (x, y).
    labels : array of int or str, shape (n,), or of float, shape (n, k), optional
        y of each sample. Without them each sample is read once, before round 1, for its y alone.

    Raises
    ------
    DataError
        ``samples`` has no samples by their numbers, as an IterableDataset and a DataLoader have not.

    Examples
    --------
    >>> import fedpfl, numpy, torch
    >>> class Photographs(torch.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 200
    ...
    ...     def __getitem__(self, at):
    ...         pixels = numpy.random.default_rng(at).integers(256, size=(8, 8, 3), dtype=numpy.uint8)
    ...         return pixels, at % 3
    >>> run = fedpfl.run(
    ...     "local", data=fedpfl.Lazy(Photographs(), numpy.arange(200) % 3), model="mlp", num_clients=2,
    ...     num_server_rounds=1, quiet=True,
    ... )
    >>> run.summary["rounds"]
    1
    """

    def __init__(self, samples: Any, labels: Any = None) -> None:
        if not has_places(samples):
            raise DataError(
                f"Lazy is given {references.article(samples)}; it takes a torch Dataset, whose samples it reads by "
                "their numbers: of a DataLoader give its dataset"
            )
        self.samples, self.labels = samples, labels

    def __len__(self) -> int:
        count: int = len(self.samples)
        return count

    def __getitem__(self, place: int) -> Any:
        return self.samples[place]


class LazyArray:
    """Samples that are read by their places: of ``pieces`` how many there are, and what reads one like ``like``."""

    read_later = True

    def __init__(self, pieces: Sequence[tuple[int, Callable[[int], np.ndarray]]], like: np.ndarray) -> None:
        self._pieces = pieces
        self._starts = np.cumsum([0, *(count for count, _ in pieces)])
        self.dtype, self.ndim = like.dtype, like.ndim + 1
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *like.shape)
        self._like = like

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> LazyArray:
        there = range(*part.indices(len(self)))
        return LazyArray([(len(there), lambda index: self.read(there[index]))], self._like)

    def read(self, place: int) -> np.ndarray:
        """Read one sample."""
        piece = int(np.searchsorted(self._starts, place, side="right")) - 1
        one: np.ndarray = self._pieces[piece][1](int(place - self._starts[piece]))
        return one

    @cached_property
    def digest(self) -> bytes:
        """A hash of some samples, spread over all; empty where a sample is another one at each reading."""
        places = np.unique(np.linspace(0, max(0, len(self) - 1), min(HASHED, len(self))).astype(int)).tolist()
        digest = hashlib.sha256()
        with user_code.global_state_kept():

            def one(place: int) -> bytes:
                rng.seed_global(place)  # what draws from the usual generators draws the same
                return np.ascontiguousarray(self.read(place)).tobytes()

            if any(one(place) != one(place) for place in places[:: max(1, -(-len(places) // COMPARED))]):
                return b""
            for place in places:
                digest.update(one(place))
        return digest.digest()

    def rows(self, further: LazyArray | None, places: np.ndarray) -> np.ndarray:
        """Read the samples at these places, where those of ``further`` are thought of as the following ones."""
        samples = np.empty((len(places), *self.shape[1:]), self.dtype)
        for row, place in enumerate(places.tolist()):
            samples[row] = self.read(place) if further is None or place < len(self) else further.read(place - len(self))
        return samples

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, named: Any) -> Any:
        """Lay samples end to end, or grey images on several channels, as NumPy does with arrays; nothing else."""
        if function is np.concatenate:
            return LazyArray([(len(one), getattr(one, "read", one.__getitem__)) for one in arguments[0]], self._like)
        if function is np.repeat and named == {"axis": self.ndim - 1}:
            like = np.repeat(self._like, arguments[1], axis=-1)
            return LazyArray([(len(self), lambda place: np.repeat(self.read(place), arguments[1], axis=-1))], like)
        raise DataError("samples that are read when they are needed (Lazy) cannot be laid next to others in memory")


class LazyInputs:
    """The inputs of one client, where others are a tensor: an index reads those samples."""

    # Bytes in memory.
    nbytes = 0

    def __init__(self, places: np.ndarray, read: Callable[[np.ndarray], torch.Tensor], device: str = "cpu") -> None:
        import torch

        self._places, self._read, self.device = places, read, torch.device(device)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Read the samples that a slice, or a tensor of places or of truth values, selects."""
        chosen = self._places[rows if isinstance(rows, slice) else np.asarray(rows.cpu())]
        return self._read(chosen).to(self.device)

    def gathered(self, places: torch.Tensor) -> torch.Tensor:
        """Read a batch to train on, in memory as one that is gathered from a tensor."""
        import torch

        batch = self[places]
        return batch.contiguous(memory_format=torch.channels_last) if batch.dim() == 4 else batch

    def to(self, device: str) -> LazyInputs:
        """Return the same inputs; what is read of them is then on the device."""
        return LazyInputs(self._places, self._read, device)


def samples_at(places: np.ndarray, read: Callable[[np.ndarray], torch.Tensor], labels: np.ndarray) -> Samples:
    """Return labelled samples whose inputs are read when they are needed."""
    import torch

    inputs: Any = LazyInputs(places, read)
    return Samples(inputs, torch.from_numpy(labels))


def require_unchanged(data: Dataset, settings: DataSettings) -> None:
    """Refuse ``standardize``, which needs all of a client's inputs at once."""
    if settings.standardize != "none":
        message = f"must be none for {data.name}, whose samples are read one by one (Lazy): let its Dataset do it"
        raise ConfigError("standardize", settings.standardize, message)
