"""What FedReG's augmentations make of images.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedpfl.core.errors import ConfigError
from fedpfl.core.rng import generator
from fedpfl.core.settings import setting
from fedpfl.methods.fedreg import augmented
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Table
from fedpfl.study.analysis.figure import Images
from fedpfl.study.analysis.registry import Result, analysis
from fedpfl.study.analysis.repetitions import data_of
from fedpfl.study.analysis.stored_models import picture


@dataclass(frozen=True)
class AugmentationOptions:
    """Options of the analysis ``augmentations``."""

    client: int = setting(0, "Client whose training images are augmented.", minimum=0)
    images: int = setting(4, "Number of images.", minimum=1)
    copies: int = setting(5, "Number of augmented copies per image.", minimum=1)


@analysis(
    "augmentations",
    "Examples of the augmentations simple and auto on a client's images (FedReG, figure 6)",
    AugmentationOptions,
    computes=True,
)
def augmentations(runs: Sequence[RunFolder], options: AugmentationOptions) -> Result:
    """Show images of one client as they are and augmented; needs the first run's data on this machine."""
    config, data = data_of(runs[0])
    if not data.is_image:
        raise ConfigError("dataset", config.data.dataset, "holds no images, so there are none to augment")
    if options.client >= data.num_clients:
        raise ConfigError("client", options.client, f"must be below {data.num_clients}, the number of clients")
    normalize = config.data.normalize
    images = data.train(options.client).x[: options.images]
    repeated = torch.repeat_interleave(images, options.copies, dim=0)
    figures, rows = [], []
    for kind in ("simple", "auto"):
        seed = int(generator(config.run.seed, "example augmentations", options.client).integers(2**63 - 1))
        made = augmented(repeated, kind, seed, normalize)
        shown = {
            f"image {place}": [
                picture(image, normalize)
                for image in (images[place], *made[place * options.copies :][: options.copies])
            ]
            for place in range(len(images))
        }
        figures.append(Images(f"FedReG's augmentation {kind}", shown))
        changed = float(np.mean([(a != b).any().item() for a, b in zip(made, repeated, strict=True)]))
        rows.append([kind, len(made), changed])
    return Result([Table("Augmented images", ["augmentation", "copies", "share that differs"], rows)], list(figures))
