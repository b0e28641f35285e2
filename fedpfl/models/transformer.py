"""A small Transformer for texts: an encoder that classifies them, and a decoder that predicts the next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, named, register

WIDTH, HEADS, HIDDEN, BLOCKS = 64, 4, 256, 2
PADDING = 0  # as data sets of words fill up short texts


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2).

    ``width``, the size of each position's vector, is divisible by ``heads``. The projections are plain linear layers,
    unlike those of ``nn.MultiheadAttention``, so that methods can take them apart.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, ignored: Tensor | None = None) -> Tensor:
        """Map (n, length, width) to the same shape.

        No position looks at those that are ``ignored`` for it, bool of (n or 1, 1, length or 1, length).
        """
        q, k, v = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if ignored is not None:
            # Finite, so that a text without any word has a softmax.
            scores = scores.masked_fill(ignored, torch.finfo(scores.dtype).min)
        heads = scores.softmax(-1) @ v
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        """Map (n, length, width) to (n, heads, length, width / heads)."""
        n, length, width = x.shape
        return x.view(n, length, self.heads, width // self.heads).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward network, each behind a layer normalisation and with a shortcut around it."""

    def __init__(self, width: int, heads: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.forward1 = nn.Linear(width, hidden)
        self.activation = activation
        self.forward2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor, ignored: Tensor | None = None) -> Tensor:
        """Map (n, length, width) to (n, length, width); see :class:`SelfAttention`."""
        x = x + self.attention(self.norm1(x), ignored)
        out: Tensor = x + self.forward2(self.activation(self.forward1(self.norm2(x))))
        return out


class _Blocks(nn.Module):
    """Embedding, positions and blocks."""

    positions: Tensor

    def __init__(self, length: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.register_buffer("positions", sinusoids(length), persistent=False)
        self.blocks = named(
            **{f"block{n}": TransformerBlock(WIDTH, HEADS, HIDDEN, nn.ReLU()) for n in range(1, BLOCKS + 1)}
        )
        self.norm = nn.LayerNorm(WIDTH)


class Encoder(_Blocks):
    """Maps tokens to the mean of their vectors behind the blocks; padding does not count."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (n, length) to features (n, width)."""
        ignored = tokens == PADDING
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x, ignored[:, None, None])
        counted = (~ignored).unsqueeze(-1).to(x.dtype)
        mean: Tensor = (self.norm(x) * counted).sum(1) / counted.sum(1).clamp(min=1)
        return mean


class Decoder(_Blocks):
    """Maps each token to a vector that depends on it and on those before it."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (n, length) to features (n, length, width); texts may be shorter than those it was built for."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.embedding(tokens) + self.positions[:length]
        for block in self.blocks:
            x = block(x, later[None, None])
        features: Tensor = self.norm(x)
        return features


def sinusoids(length: int) -> Tensor:
    """Return the encoding of positions by sines and cosines (Vaswani et al. 2017, section 3.5), (length, width)."""
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


@register("transformer", tokens=True)
def transformer(input_shape: Shape, num_classes: int, vocabulary: int) -> BaseHeadModel:
    """Two encoder blocks (width 64, 4 heads, 256 hidden units), the mean over all words that are no padding.

    FedDecomp, appendix B, runs a Transformer on AG News and gives no sizes: these are this project's own, as is the
    normalisation before instead of behind each part, which needs no warm-up of the learning rate. 1,148,932 parameters
    for 16,384 words and 4 classes.
    """
    return BaseHeadModel(Encoder(input_shape[0], vocabulary), nn.Linear(WIDTH, num_classes))


@register("decoder", tokens=True)
def decoder(input_shape: Shape, num_classes: int, vocabulary: int) -> BaseHeadModel:
    """Two decoder blocks (width 64, 4 heads, 256 hidden units): for ``loss = "next-token"``.

    This project's own sizes, those of the model transformer, but each token sees those before it alone, and there is an
    output for each.
    112,996 parameters for 100 characters.
    """
    model = BaseHeadModel(Decoder(input_shape[0], vocabulary), nn.Linear(WIDTH, num_classes))
    model.gives_for = "token"
    return model
