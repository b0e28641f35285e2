"""FedFac's simulation: whether a split that was planted in the clients' networks is found, and what it is worth.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Section 4.3.1.
Every client's labels come from a network of its own with one hidden layer, some of whose neurons all clients have in
common.

Recovery: the rule of ``fedfac`` gets weights as clients would send them if each had learnt its own true network up to
normal noise. With networks trained from a common start the question has no answer: their neurons correspond to no
neurons of the true ones, unless the start itself shows which are which.

Worth (``--train``): federations with the true split, the oracle's (a factor analysis of the true parameters), the
static, the dynamic and a random one. They start at the mean of the clients' true networks plus noise, so that neuron j
means neuron j; how much of the split is found is not reported there, because this start gives it away.

What the paper leaves open is chosen so: 200 samples a client, a quarter of them for testing; σ = 1; τ is the quantile
with which as many neurons are shared as in truth. One thing differs: as written nearly all samples have the same label,
because x^p and w^pp have the same mean µ_c; here a client's threshold is its median, so that half its labels are 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedpfl.bench.superlink import script
from fedpfl.core.checksummed_files import to_toml
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.methods.fedfac.channel_sharing import Channels
from fedpfl.methods.fedfac.factor_analysis import Moments, number_of_factors, principal_axis, shared_channels
from fedpfl.methods.fedfac.factor_split import FactorSplit
from fedpfl.results.run_folder import RunFolder

CLIENTS, FEATURES, NEURONS = 100, 100, 200
SAMPLES = 200
START_NOISE = 0.1
KAPPA = 0.75
SPLITS = ("true", "oracle", "static", "dynamic", "random")


@dataclass(frozen=True)
class Planted:
    """The clients' data and what they were made by.

    Attributes
    ----------
    x : ndarray of float32, shape (clients, samples, features)
    y : ndarray of int64, shape (clients, samples)
    weights : ndarray of float32, shape (clients, neurons, features)
        The true hidden layers.
    outputs : ndarray of float32, shape (neurons,)
        a, the same for all clients.
    split : ndarray of uint8, shape (neurons,)
        1 for the neurons that all clients have in common.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    outputs: np.ndarray
    split: np.ndarray


def plant(alpha: float, p: float, seed: int, clients: int = CLIENTS, samples: int = SAMPLES) -> Planted:
    """Draw the clients' networks and data (Equation 8).

    Parameters
    ----------
    alpha : float
        Share α = d_2/d of the features that have the same distribution on all clients.
    p : float
        Share p = m_2/m of the neurons that are shared.
    seed : int
        Everything follows from it.
    clients, samples : int
        Number of clients, and of samples of each.
    """
    rng = np.random.default_rng(seed)
    own_features, own_neurons = FEATURES - round(alpha * FEATURES), NEURONS - round(p * NEURONS)
    split = np.repeat(np.array([0, 1], np.uint8), [own_neurons, NEURONS - own_neurons])
    split = split[rng.permutation(NEURONS)]  # the position of a neuron says nothing
    common = np.concatenate(
        [
            rng.uniform(-0.1, 0.1, (NEURONS - own_neurons, own_features)),
            rng.uniform(-1, 1, (NEURONS - own_neurons, FEATURES - own_features)),
        ],
        axis=1,
    )
    outputs = rng.normal(size=NEURONS)
    place = np.arange(own_features)
    root = np.linalg.cholesky(0.5 ** np.abs(place[:, None] - place))
    xs, ys, weights = [], [], []
    for _ in range(clients):
        mu = rng.normal(size=own_features)
        hidden = np.empty((NEURONS, FEATURES))
        hidden[split == 1] = common
        hidden[split == 0] = np.concatenate(
            [
                mu + rng.normal(size=(own_neurons, own_features)),
                rng.uniform(-0.1, 0.1, (own_neurons, FEATURES - own_features)),
            ],
            axis=1,
        )
        own = mu + rng.normal(size=(samples, own_features)) @ root.T
        x = np.concatenate([own, rng.normal(size=(samples, FEATURES - own_features))], axis=1)
        signal = np.maximum(x @ hidden.T, 0) @ outputs + rng.normal(size=samples)
        xs.append(x)
        ys.append(signal > np.median(signal))
        weights.append(hidden)
    return Planted(
        np.array(xs, np.float32), np.array(ys, np.int64), np.array(weights, np.float32), outputs.astype(np.float32),
        split,
    )  # fmt: skip


def write(planted: Planted, folder: Path, seed: int) -> dict[str, Any]:
    """Write data, start and splits; return the settings of the runs that use them."""
    clients, samples, _ = planted.x.shape
    np.savez(
        folder / "data.npz", x=planted.x.reshape(-1, FEATURES), y=planted.y.reshape(-1),
        client=np.repeat(np.arange(clients), samples),
    )  # fmt: skip
    noise = np.random.default_rng([seed, 1]).normal(scale=START_NOISE, size=(NEURONS, FEATURES))
    start = {
        "base.fc1.weight": (planted.weights.mean(axis=0) + noise).astype(np.float32),
        "base.fc1.bias": np.zeros(NEURONS, np.float32),
        # Two logits whose difference is the true network's output.
        "head.weight": np.stack([-planted.outputs / 2, planted.outputs / 2]),
        "head.bias": np.zeros(2, np.float32),
    }
    save_file(start, folder / "start.safetensors")
    np.save(folder / "true.npy", planted.split)
    np.save(folder / "oracle.npy", oracle(planted))
    return {
        "dataset": "npz", "data": str(folder / "data.npz"), "partitioner": "natural", "num-clients": clients,
        "model": "mlp-200", "initial-weights": str(folder / "start.safetensors"), "seed": seed,
        "optimizer": "adam", "learning-rate": 0.001, "momentum": 0.9, "batch-size": 32,
    }  # fmt: skip


def oracle(planted: Planted) -> np.ndarray:
    """Split by a factor analysis of the true parameters."""
    moments = Moments(NEURONS)
    for hidden in planted.weights:
        moments.add(hidden.T)
    correlation = moments.correlation()
    factors = principal_axis(correlation, number_of_factors(correlation, KAPPA))
    return shared_channels(factors.communalities, 1 - planted.split.mean()).astype(np.uint8)


def method_of(split: str, folder: Path, share: float) -> dict[str, Any]:
    """Return the settings that make a run use one of the five splits."""
    if split in ("true", "oracle"):
        return {"method": "fedsplit", "fedsplit-split": str(folder / f"{split}.npy")}
    if split == "random":
        return {"method": "fedsplit", "fedsplit-shared": share}
    return {
        "method": "fedfac", "fedfac-variant": split, "fedfac-kappa": str(KAPPA), "fedfac-tau": f"{1 - share:.6f}",
    }  # fmt: skip


def recover(
    planted: Planted, dynamic: bool, noise: float, seed: int, factor: str = "principal-axis", rounds: int = 5
) -> list[np.ndarray]:
    """Return the splits that FedFac's rule makes, one a round, of true weights with fresh noise.

    Parameters
    ----------
    planted : Planted
        The true networks.
    dynamic : bool
        Whether there is a split after every round, over half of the clients each time; static: one, over all of them.
    noise : float
        Standard deviation of what is added to each weight.
    seed : int
        Of the noise and of the choice of clients.
    factor : str
        ``fedfac-factor``.
    rounds : int
        Rounds of the dynamic variant.
    """
    rng = np.random.default_rng([seed, 2])
    layout = Layout.of([("weight", planted.weights.shape[1:])])
    count = len(planted.weights)
    clients = tuple(Client(i, SAMPLES, SAMPLES) for i in range(count))
    rule = FactorSplit(
        Federation(clients, layout), np.zeros(layout.size, np.float32),
        channels=Channels(layout, (("weight",),)), dynamic=dynamic, kappas=[KAPPA], taus=[1 - planted.split.mean()],
        factor=factor, turned="weights",
    )  # fmt: skip
    splits = []
    for number in range(1, rounds + 1 if dynamic else 2):
        rule.begin_round(number)
        for i in sorted(rng.choice(count, count // 2 if dynamic else count, replace=False)):
            sent = planted.weights[i] + rng.normal(scale=noise, size=planted.weights.shape[1:])
            rule.add(rule.clients[i], sent.astype(np.float32).reshape(-1), Payload())
        rule.finish()
        assert rule.split is not None
        splits.append(rule.split)
    return splits


def recovered(split: np.ndarray, true: np.ndarray) -> float:
    """Return the share of the neurons that are on their true side."""
    return float((split == true).mean())


def by_chance(p: float) -> float:
    """Return what a random split with the right number of shared neurons recovers on average."""
    return p**2 + (1 - p) ** 2


def run(settings: dict[str, Any], folder: Path) -> RunFolder:
    """Run a federation with ``fedpfl run`` and return its folder."""
    name = str(settings["run-name"])
    file = folder / f"{name}.toml"
    places = {"output-dir": str(folder / "runs"), "state-dir": str(folder / "state")}
    file.write_text(to_toml({**settings, **places}), encoding="utf-8")
    done = subprocess.run([script("fedpfl"), "run", "--quiet", "--run-config", str(file)], cwd=folder, text=True,
                          capture_output=True, check=False)  # fmt: skip
    if done.returncode:
        sys.exit(f"fedfac_simulation.py: the run {name} failed: {done.stderr.strip()}")
    return RunFolder(folder / "runs" / name)


RECOVERY = ("by chance", "static", "dynamic, round 5", "unchanged, rounds 4–5", "static, eigenvector")


def print_recovery(
    settings: list[tuple[float, float]], options: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Print how much of the planted split is recovered, and return it in percent."""
    recovery = {}
    print("| α | p | noise | " + " | ".join(RECOVERY) + " |\n" + "|---" * (3 + len(RECOVERY)) + "|")
    for alpha, p in settings:
        planted = plant(alpha, p, options.seed, options.clients)
        for noise in options.noise:
            static, authors = (
                recover(planted, False, noise, options.seed, factor)[0] for factor in ("principal-axis", "eigenvector")
            )
            dynamic = recover(planted, True, noise, options.seed)
            shares = [
                by_chance(p), recovered(static, planted.split), recovered(dynamic[-1], planted.split),
                recovered(dynamic[-1], dynamic[-2]), recovered(authors, planted.split),
            ]  # fmt: skip
            print(f"| {alpha} | {p} | {noise} | {' | '.join(map(percent, shares))} |", flush=True)
            values = [[round(100 * share, 1)] for share in shares]
            recovery[f"α {alpha}, p {p}, noise {noise}"] = dict(zip(RECOVERY, values, strict=True))
    return recovery


def print_worth(settings: list[tuple[float, float]], options: argparse.Namespace) -> None:
    """Print the accuracy with each split (figure 6)."""
    print("| α | p | " + " | ".join(SPLITS) + " |\n" + "|---" * (2 + len(SPLITS)) + "|")
    for alpha, p in settings:
        planted = plant(alpha, p, options.seed, options.clients)
        with tempfile.TemporaryDirectory(prefix="fedpfl-simulation-") as name:
            folder = Path(name)
            common = write(planted, folder, options.seed)
            common.update({"num-server-rounds": options.rounds, "local-epochs": options.epochs, "evaluate-every": 0})
            accuracies = []
            for split in SPLITS:
                own = method_of(split, folder, float(planted.split.mean()))
                done = run({**common, **own, "run-name": split}, folder)
                accuracies.append(done.metrics()[-1]["personalised"]["accuracy"])
        print(f"| {alpha} | {p} | {' | '.join(map(percent, accuracies))} |", flush=True)


def main() -> None:
    """Print Markdown tables: p varies at α 0.4, α at p 0.5."""
    parser = argparse.ArgumentParser(prog="fedfac_simulation.py", description="The simulation of FedFac's section 4.3.")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="(%(default)s)")
    parser.add_argument("--p", type=float, nargs="*", default=[0.3, 0.5, 0.7], help="p, with α 0.4 (%(default)s)")
    parser.add_argument("--alpha", type=float, nargs="*", default=[0.2, 0.6], help="α, with p 0.5 (%(default)s)")
    parser.add_argument("--noise", type=float, nargs="*", default=[0.05, 0.2], help="of sent weights (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the recovered shares go as well")
    parser.add_argument("--train", action="store_true", help="run federations with each split, too")
    parser.add_argument("--rounds", type=int, default=20, help="of a federation (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of its rounds (%(default)s)")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="only write data, start and splits for one α and p"
    )
    options = parser.parse_args()
    if options.write:
        if len(options.alpha) != 1 or len(options.p) != 1:
            parser.error("--write needs one --alpha and one --p")
        options.write.mkdir(parents=True)
        write(plant(options.alpha[0], options.p[0], options.seed, options.clients), options.write, options.seed)
        return
    settings = [(0.4, p) for p in options.p] + [(alpha, 0.5) for alpha in options.alpha]
    recovery = print_recovery(settings, options)
    if options.json:
        options.json.write_text(json.dumps(recovery, ensure_ascii=False), encoding="utf-8")
    if options.train:
        print()
        print_worth(settings, options)


def percent(share: float) -> str:
    """Write a share as a percentage."""
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
