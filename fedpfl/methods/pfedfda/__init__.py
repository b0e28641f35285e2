"""pFedFDA: the method, and the Gaussians of features from which its classifiers follow."""

from __future__ import annotations

from .pfedfda import PFedFDA

__all__ = ["PFedFDA"]
