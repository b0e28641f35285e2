"""FedFac: a factor analysis of the clients' channels decides which channels are shared.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, 2023,
Section 4, Algorithms 1 (static) and 2 (dynamic).

The paper analyses before round 1, after a local training that it discards. Here round 1 trains everything, and its
analysis makes the first split. The server's step size η_g is 1. Σ_ε is diag(R − ÂÂᵀ); as printed, without diag, nothing
would change. The iteration ends when no communality moves by more than 0.001; some are then 0.01 from the limit, which
can decide on the side of a channel next to the quantile.

The authors' program and ``configs/`` differ from the paper in three settings. ``fedfac-splits = "weight"`` makes all
biases of Λ personal. ``fedfac-factor = "eigenvector"`` takes squared entries of the first eigenvectors, unscaled and
not iterated. With ``fedfac-turned = "weights"`` a channel that becomes shared takes the mean of weights that trained
apart; Algorithm 2 adds the mean change to its last shared value. As in that program, masked weights (``fedfac-mask``)
are N(0, 1), drawn before each training and before each test, and they are trained.
"""

from __future__ import annotations

from typing import Callable, Sequence, cast

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError, NoPlainModel
from ...core.extra_arrays import ANY, CHANGE, SERVER, Extra
from ...core.payload import Payload
from ...core.sharing import SPLIT
from ..base import Aggregation, LocalRound
from ..settings import FedFacSettings
from .channel_sharing import Channels, ChannelSharing
from .factor_split import FactorSplit
from .fedsplit import FedSplit


class FedFac(FedSplit):
    """Share the channels that a factor analysis of all clients' channels explains well.

    client i:
        train w_i, from w, on f_i
        send w_i        # static: from round 2 on only what is shared
    server: X ← all clients' channels of a layer of Λ;  fit X = A·F + noise, F: factors
        ν_j ← Σ_m A_jm²;  channel j is shared if ν_j ≥ the τ quantile of ν
        w ← mean(w_i), for what is shared
    predict: (w, the client's own channels)
    """

    name = "fedfac"
    shares = "everything but the client-specific channels of some layers, found by factor analysis"
    Settings = FedFacSettings

    @property
    def only_shared_travel(self) -> bool:
        """For the dynamic split the server has to see all channels in every round."""
        return bool(self.settings.variant == "static")

    def check(self) -> None:
        """Require that κ is a share, and τ a quantile, infinite, or ``mean``."""
        self._per_layer(
            "kappa", "a number above 0 and at most 1", lambda: all(0 < kappa <= 1 for kappa in self._kappas)
        )
        self._per_layer("tau", "a number from 0 to 1, inf, -inf or mean", lambda: all(map(_is_threshold, self._taus)))

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a model that lacks a layer of Λ, and more or fewer values than there are layers."""
        count = len(self.layers(model))
        for key in ("kappa", "tau"):
            value = getattr(self.settings, key)
            if len(value.split(",")) not in (1, count):
                raise ConfigError(f"fedfac-{key}", value, f"must be one number, or one for each of {count} layers")
        return model

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Tell users what the server sees."""
        when = "in round 1" if self.only_shared_travel else "in every round"
        return [f"fedfac, {self.settings.variant}: the server gets the client-specific channels too, {when}"]

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Mask one side's weights, where table 8's ablation asks for it."""
        if self.settings.mask == "none" or not local.has_received(SPLIT):
            return
        rng = local.generator("mask")
        for name, shared in self._channels_of(local).rows(local.received(SPLIT)).items():
            if name in self._weights(local.model):
                weight = local.model.get_parameter(name)
                masked = torch.from_numpy(shared if self.settings.mask == "shared" else ~shared)
                noise = torch.from_numpy(rng.standard_normal((int(masked.sum()), *weight.shape[1:])))
                weight[masked] = noise.to(weight)

    def conclude(self, local: LocalRound) -> Payload:
        """Send what training changed, where the server adds that, and while it does."""
        has_split = local.has_received(SPLIT)
        if not (self.turns and has_split):
            return Payload()
        state = local.model.state_dict()
        change = local.as_vector({name: state[name] - start for name, start in local.start.items()})
        return Payload(arrays={"difference": change[self._channels_of(local).changing(local.received(SPLIT))]})

    @property
    def turns(self) -> bool:
        """Tell whether channels that turn shared take the mean change."""
        return self.settings.turned == "difference" and not self.only_shared_travel

    @property
    def extras(self) -> Sequence[Extra]:
        """The split; the difference only where, and while, the server reads it."""
        if not self.turns:
            return super().extras
        about = "what training changed in the client-specific channels of Λ"
        return (*super().extras, Extra("difference", SERVER, about, (ANY,), required=False, kind=CHANGE))

    def _channels_of(self, local: LocalRound) -> Channels:
        return cast(ChannelSharing, self.sharing(local.model)).channels

    def _weights(self, model: nn.Module) -> list[str]:
        return [f"{layer}.weight" for layer in self.layers(model)]

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the arrays as they are; refuse those of an ablation, which noise replaces."""
        if self.settings.mask != "none":
            raise NoPlainModel(f'fedfac-mask = "{self.settings.mask}" tests a model with noise, which is not kept')
        return super().export(model)

    @property
    def aggregation(self) -> Aggregation:
        """Factor analysis on the server, then the mean of the shared channels (Algorithms 1 and 2)."""
        s = self.settings
        analysis = {"kappas": self._kappas, "taus": self._taus, "factor": s.factor, "turned": s.turned}
        return Aggregation(FactorSplit, {"dynamic": s.variant == "dynamic", **analysis})

    @property
    def _kappas(self) -> list[float]:
        return [float(word) for word in self.settings.kappa.split(",")]

    @property
    def _taus(self) -> list[float | str]:
        texts = [text.strip() for text in self.settings.tau.split(",")]
        return [text if text == "mean" else float(text) for text in texts]

    def _per_layer(self, key: str, requirement: str, proper: Callable[[], bool]) -> None:
        try:
            fine = proper()
        except ValueError:
            fine = False
        if not fine:
            value = getattr(self.settings, key)
            raise ConfigError(f"fedfac-{key}", value, f"must be {requirement}, or one for each layer with commas")


def _is_threshold(value: float | str) -> bool:
    return isinstance(value, str) or 0 <= value <= 1 or abs(value) == float("inf")
