"""Layers whose weights are put together from a shared and a personal part."""

from __future__ import annotations

from .low_rank import LowRankConv2d, LowRankLinear, decompose, frozen_tau, full_rank_only, is_low_rank, merge

__all__ = ["LowRankConv2d", "LowRankLinear", "decompose", "frozen_tau", "full_rank_only", "is_low_rank", "merge"]
