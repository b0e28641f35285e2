"""UCI HAR by person, with whole stretches of walking, sitting and so on either for training or for tests.

Neighbouring windows of UCI HAR overlap by half: with single windows drawn for the tests, most of them would have been
half seen in training, and a model of one person would look better than it is. This script puts windows that overlap
into stretches again and leaves about a quarter of each person's windows of each activity for tests, in whole stretches.

Each channel is then shifted and scaled to mean 0 and standard deviation 1 over all training windows. As recorded, the
channels deviate by 0.1 to 0.4 and gravity is an offset; networks without normalisation then learn several times more
slowly. On devices these two numbers for each of the nine channels would be fixed beforehand.

It reads an npz file with ``x`` (windows × 9 × 128, of which the first half continues the second half of the window
before), ``y`` and ``client``, and writes ``har.npz`` for ``dataset = "npz"`` and ``split = "given"``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

TEST_SHARE = 0.25


def stretches(x: np.ndarray, client: np.ndarray) -> np.ndarray:
    """Return a number for each window, the same for those of one stretch.

    Parameters
    ----------
    x : ndarray of float, shape (windows, channels, time)
    client : ndarray, shape (windows,)
        Whose windows they are.
    """
    half = x.shape[2] // 2
    starts = {(client[i], x[i, :, :half].tobytes()): i for i in range(len(x))}
    following = [starts.get((client[i], x[i, :, half:].tobytes())) for i in range(len(x))]
    stretches = np.full(len(x), -1)
    for first in sorted(set(range(len(x))) - set(following)):
        window: int | None = first
        while window is not None and stretches[window] < 0:
            stretches[window], window = first, following[window]
    return stretches


def for_tests(y: np.ndarray, client: np.ndarray, stretch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Say of each window whether it is for tests.

    Of a person's stretches of an activity, in random order, those are taken that bring the windows nearer to
    ``TEST_SHARE``; one stretch stays for training.

    Parameters
    ----------
    y, client, stretch : ndarray of int, shape (windows,)
        Activity, person and stretch.
    rng : numpy Generator
        The order.
    """
    chosen = np.zeros(len(y), bool)
    for person, activity in sorted({*zip(client.tolist(), y.tolist(), strict=True)}):
        windows = np.flatnonzero((client == person) & (y == activity))
        wanted = TEST_SHARE * len(windows)
        for number in rng.permutation(np.unique(stretch[windows]))[1:]:
            more = windows[stretch[windows] == number]
            if abs(chosen[windows].sum() + len(more) - wanted) < abs(chosen[windows].sum() - wanted):
                chosen[more] = True
    return chosen


def standardised(x: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Return windows whose channels have mean 0 and standard deviation 1 over those for training.

    Parameters
    ----------
    x : ndarray of float, shape (windows, channels, time)
    training : ndarray of bool, shape (windows,)
        Which windows are for training.
    """
    mean = x[training].mean(axis=(0, 2), keepdims=True, dtype=np.float64)
    deviation = x[training].std(axis=(0, 2), keepdims=True, dtype=np.float64)
    return ((x - mean) / deviation).astype(np.float32)


def made_up(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return windows of four people who never lived, for trials without the data: 3 channels, 3 activities."""
    people, activities, parts, windows, time = 4, 3, 4, 6, 64
    x, y, client = [], [], []
    for person in range(people):
        for activity in range(activities):
            for _ in range(parts):
                steps = np.arange((windows + 1) * time // 2) * (activity + 1 + 0.1 * person) * 2 * np.pi / 32
                whole = np.sin(steps + rng.uniform(0, 6, (3, 1))) + rng.normal(0, 0.3, (3, len(steps)))
                x += [whole[:, at : at + time] for at in range(0, windows * time // 2, time // 2)]
                y += [activity] * windows
                client += [person] * windows
    return {"x": np.array(x, np.float32), "y": np.array(y), "client": np.array(client)}


def main() -> None:
    """Write the data of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FILE", help="the windows; without it made-up ones")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", required=True, help="where har.npz goes")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    if options.data:
        with np.load(options.data.expanduser()) as file:
            data = dict(file)
    else:
        data = made_up(rng)
    x, y, client = data["x"], data["y"], data["client"]
    test = for_tests(y, client, stretches(x, client), rng)
    x = standardised(x, ~test)
    arrays = {
        f"{name}_{part}": values[where]
        for name, values in (("x", x), ("y", y), ("client", client))
        for part, where in (("train", ~test), ("test", test))
    }
    if "classes" in data:
        arrays["classes"] = data["classes"]
    options.write.mkdir(parents=True)
    np.savez(options.write / "har.npz", **arrays)


if __name__ == "__main__":
    main()
