"""FedDecomp's subset of ImageNet as one npz file: 400 classes, 200 training images of each.

Appendix B names neither the classes nor the size of the images. Here the classes are drawn by the seed, images are the
first of each class in the order of their names, cut to a square and scaled to 64 × 64 pixels, and 40 more of each class
are for tests (the paper's other tables have one test sample for five training samples).

    python experiments/feddecomp/imagenet_subset.py ~/imagenet/train --write ~/.fedpfl/data/imagenet-subset.npz
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

CLASSES, TRAIN, TEST, SIDE = 400, 200, 40, 64


def square(file: Path, side: int) -> np.ndarray:
    """Return the middle square of an image, uint8 side × side × 3."""
    from PIL import Image, ImageOps

    with Image.open(file) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BILINEAR))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="ImageNet's training images, a folder for each class")
    parser.add_argument("--write", type=Path, metavar="FILE", required=True, help="the npz file")
    parser.add_argument("--seed", type=int, default=1, help="the classes follow from it (%(default)s)")
    parser.add_argument("--classes", type=int, default=CLASSES, help="(%(default)s)")
    parser.add_argument("--side", type=int, default=SIDE, help="pixels (%(default)s)")
    options = parser.parse_args()
    folders = sorted(path for path in options.folder.expanduser().iterdir() if path.is_dir())
    if len(folders) < options.classes:
        sys.exit(
            f"imagenet_subset.py: {options.folder}: has {len(folders)} folders, {options.classes} classes are wanted"
        )
    chosen = np.random.default_rng(options.seed).choice(len(folders), options.classes, replace=False)
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for folder in (folders[at] for at in sorted(chosen)):
        files = sorted(path for path in folder.iterdir() if path.is_file())[: TRAIN + TEST]
        if len(files) < TRAIN + TEST:
            sys.exit(f"imagenet_subset.py: {folder}: has {len(files)} images, {TRAIN + TEST} are wanted")
        images = np.stack([square(file, options.side) for file in files])
        parts["train"].append(images[:TRAIN])
        parts["test"].append(images[TRAIN:])
    arrays = {f"x_{part}": np.concatenate(images) for part, images in parts.items()}
    labels = {f"y_{part}": np.repeat(np.arange(options.classes), len(images[0])) for part, images in parts.items()}
    options.write.expanduser().parent.mkdir(parents=True, exist_ok=True)
    names = np.array([folders[at].name for at in sorted(chosen)])
    np.savez(options.write.expanduser(), **arrays, **labels, classes=names)


if __name__ == "__main__":
    main()
