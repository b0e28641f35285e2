"""What secure aggregation costs a round of ten clients, with the functions of Flower's SecAgg+.

All clients are in this process and nothing travels: keys, shares of them, masks, the sum, and its masks taken off
again, also of clients that have sent their shares and then dropped out. Prints JSON: milliseconds (the best of
``--repeats``), bytes, and the largest error of the mean. ``python benchmarks/secure_sum.py``
"""

from __future__ import annotations

import argparse
import json
import secrets
import time

import numpy as np
from common import count, main
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

CLIENTS, THRESHOLD = 10, 7
# Flower's defaults.
CLIP, LEVELS, MODULUS = 8.0, 1 << 22, 1 << 32


def mask(seed: bytes, size: int) -> np.ndarray:
    """Return the mask that follows from a seed."""
    (array,) = pseudo_rand_gen(seed, MODULUS, [(size,)])
    return array


def one_round(size: int, dropped: int) -> dict[str, list[float]]:
    """Add up one vector of each client, of which some drop out; return what it took."""
    rng, clients = np.random.default_rng(0), range(CLIENTS)
    vectors = rng.normal(0, 0.1, (CLIENTS, size)).astype(np.float32)
    started = time.perf_counter()
    pairs, for_shares = [generate_key_pairs() for _ in clients], [generate_key_pairs() for _ in clients]
    seeds = [secrets.token_bytes(32) for _ in clients]
    of_seeds = [create_shares(seed, THRESHOLD, CLIENTS) for seed in seeds]
    of_keys = [create_shares(private_key_to_bytes(private), THRESHOLD, CLIENTS) for private, _ in pairs]
    letters = [
        encrypt(generate_shared_key(for_shares[i][0], for_shares[j][1]), of_seeds[i][j] + of_keys[i][j])
        for i in clients for j in clients if i != j
    ]  # fmt: skip
    prepared = time.perf_counter()
    sent = []
    for i in clients:
        (masked,) = quantize([vectors[i]], CLIP, LEVELS)
        masked = masked + mask(seeds[i], size)
        for j in clients:
            if i != j:
                masked += (1 if i > j else -1) * mask(generate_shared_key(pairs[i][0], pairs[j][1]), size)
        sent.append(masked % MODULUS)
    added = time.perf_counter()
    here = range(CLIENTS - dropped)
    total = np.sum([sent[i] for i in here], axis=0)
    for i in here:
        total -= mask(combine_shares([of_seeds[i][j] for j in here[:THRESHOLD]]), size)
    for i in range(CLIENTS - dropped, CLIENTS):
        combine_shares([of_keys[i][j] for j in here[:THRESHOLD]])
        for j in here:
            total += (1 if i > j else -1) * mask(generate_shared_key(pairs[i][0], pairs[j][1]), size)
    mean = (total % MODULUS * (2 * CLIP / LEVELS) - CLIP * len(here)) / len(here)
    ended = time.perf_counter()
    keys = 2 * len(public_key_to_bytes(pairs[0][1]))
    return {
        "client: keys and shares, ms": [(prepared - started) / CLIENTS * 1e3],
        "client: masks, ms": [(added - prepared) / CLIENTS * 1e3],
        "server: masks taken off, ms": [(ended - added) * 1e3],
        "client: keys and shares, kB": [(keys + sum(map(len, letters)) / CLIENTS) / 1e3],
        "client: vector masked, MB": [sent[0].nbytes / 1e6],
        "client: vector plain, MB": [vectors[0].nbytes / 1e6],
        "largest error of the mean, 1e-6": [float(np.abs(mean - vectors[: len(here)].mean(axis=0)).max()) * 1e6],
    }


def measure(options: argparse.Namespace) -> None:
    """Measure every size with and without clients that drop out."""
    seconds_of = {}
    for size in options.sizes:
        for dropped in (0, 2):
            tries = [one_round(size, dropped) for _ in range(options.repeats)]
            best = {name: min(one[name] for one in tries) for name in tries[0]}
            seconds_of[f"{size:,} values, {dropped} of {CLIENTS} drop out"] = best
    print(json.dumps(seconds_of, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=count, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--repeats", type=count, default=5)
    main(measure, parser)
