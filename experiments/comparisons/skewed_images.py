"""Fashion-MNIST among clients whose images, or whose class numbers, differ in a known way: one model fails for both.

``--kind sensors``: a client's images are taken by its own camera, with its own contrast and brightness, and every
second client's are negatives. Classes are the same everywhere and mean the same.

``--kind meanings``: images are alike, but each of four groups of clients numbers the classes in its own order.

Images are halved to 14x14 pixels. Each client gets images of all classes, drawn at random and given to nobody else. The
script reads Fashion-MNIST's files in torchvision's layout and writes ``images.npz`` for ``dataset = "npz"`` and
``split = "given"``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

CLIENTS, TRAINING, TESTS, GROUPS = 20, 150, 100, 4


def fashion_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 14, 14), each value the mean of 2x2 pixels, uint8, and labels (n,) of the training set."""
    raw = folder.expanduser() / "FashionMNIST" / "raw"
    images = np.fromfile(raw / "train-images-idx3-ubyte", np.uint8, offset=16)
    labels = np.fromfile(raw / "train-labels-idx1-ubyte", np.uint8, offset=8)
    return images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).astype(np.uint8), labels.astype(np.int64)


def made_up(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images of ten bars, for trials without the data."""
    y = np.arange(CLIENTS * (TRAINING + TESTS)) % 10
    x = rng.integers(0, 100, (len(y), 14, 14), np.uint8)
    for place, label in enumerate(y):
        x[place, label + 2] += 120
    return x, y


def cameras(x: np.ndarray, client: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images as each client's camera gives them.

    Parameters
    ----------
    x : ndarray of uint8, shape (n, 14, 14)
        Images.
    client : ndarray of int, shape (n,)
        Whose images they are.
    rng : numpy Generator
        Draws each camera's contrast, from 0.2 to 1, and its brightness, as much as keeps values within 0 to 255.
    """
    contrast = rng.uniform(0.2, 1, CLIENTS)
    brightness = rng.uniform(0, 255 * (1 - contrast))
    negative = np.where((client % 2 == 1)[:, None, None], 255 - x, x)
    return (negative * contrast[client, None, None] + brightness[client, None, None]).astype(np.uint8)


def numberings(y: np.ndarray, client: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return labels as each client's group numbers the classes; clients take turns in joining the groups.

    Parameters
    ----------
    y, client : ndarray of int, shape (n,)
        Class and client.
    rng : numpy Generator
        An order of the ten classes for each group.
    """
    orders = np.array([rng.permutation(10) for _ in range(GROUPS)])
    return orders[client % GROUPS, y]


def main() -> None:
    """Write the data of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("sensors", "meanings"), required=True, help="what differs between clients")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="torchvision's folder; without it made-up images")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", required=True, help="where images.npz goes")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    x, y = fashion_mnist(options.data) if options.data else made_up(rng)
    chosen = rng.permutation(len(y))[: CLIENTS * (TRAINING + TESTS)]
    x, y, client = x[chosen], y[chosen], np.arange(len(chosen)) % CLIENTS
    if options.kind == "sensors":
        x = cameras(x, client, rng)
    else:
        y = numberings(y, client, rng)
    test = np.arange(len(chosen)) >= CLIENTS * TRAINING
    options.write.mkdir(parents=True)
    np.savez(
        options.write / "images.npz",
        **{
            f"{name}_{part}": values[where]
            for name, values in (("x", x), ("y", y), ("client", client))
            for part, where in (("train", ~test), ("test", test))
        },
    )


if __name__ == "__main__":
    main()
