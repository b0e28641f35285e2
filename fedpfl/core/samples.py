"""The samples of one client, as everything that trains or tests takes them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Callable, Hashable, NamedTuple

if TYPE_CHECKING:
    import torch

CACHE_BYTES = 512 * 2**20
# In a mask, the label of pixels that count neither in training nor in tests.
IGNORED = 255
# The same of tokens, as in PyTorch and Hugging Face's transformers.
IGNORED_TOKEN = -100
# More than any data in use: ImageNet-21k has 21,841 classes, texts have some 50,000 tokens.
MAX_CLASSES, MAX_TOKENS = 100_000, 1_000_000


class Samples(NamedTuple):
    """Labelled samples, ready to train on. The tensors are shared by all who ask for them: do not write to them.

    Attributes
    ----------
    x : Tensor of float32; of int64 for texts
        Images: n × channels × height × width in channels_last memory order (convolutions on the CPU are about 1.3
        times faster), (v/255 − 0.5)/0.5, that is −1 … 1, unless ``normalize`` is set. Other data as they
        are: n × features or n × channels × length, texts n × length.
    y : Tensor of int64, shape (n,); of float32, shape (n, k), for targets; of uint8, n × height × width, for masks
        Class numbers, in the client's own numbering with ``permute-labels``. In masks 255 is a pixel that does not
        count. For ``loss = "next-token"`` int32, n × length: the tokens of x, −100 where one is not to be predicted.

    Examples
    --------
    >>> import fedpfl
    >>> import torch
    >>> x, y = fedpfl.Samples(torch.zeros(5, 1, 8, 8), torch.arange(5))
    >>> x.shape, y.dtype
    (torch.Size([5, 1, 8, 8]), torch.int64)
    """

    x: torch.Tensor
    y: torch.Tensor


class SamplesCache:
    """Caches prepared samples up to ``limit`` bytes; the least recently used go first, a larger set never stays."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.bytes_left = limit
        self._kept: OrderedDict[Hashable, Samples] = OrderedDict()

    def keys(self) -> list[Hashable]:
        """Return the keys of what is kept, the next to go first."""
        return list(self._kept)

    def clear(self) -> None:
        """Keep nothing: samples are made anew."""
        self.bytes_left += sum(map(_bytes, self._kept.values()))
        self._kept.clear()

    def get(self, key: Hashable, make: Callable[[], Samples]) -> Samples:
        """Return the samples kept under ``key``, or else make them."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        made = self._kept[key] = make()
        self.bytes_left -= _bytes(made)
        while self.bytes_left < 0:
            _, dropped = self._kept.popitem(last=False)
            self.bytes_left += _bytes(dropped)
        return made


def _bytes(samples: Samples) -> int:
    return sum(t.numel() * t.element_size() for t in samples)
