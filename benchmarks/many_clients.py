"""Memory and time of a federation of 1,000 virtual clients on one machine, through the whole of Flower.

The data set is divided evenly among the clients, a hundredth of them trains in a round, nothing is tested before the
end. Memory is that of every process of the run together: the command, Flower's SuperLink and its helpers, the
ServerApp, Ray and its actors.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from common import (
    GIB,
    BenchmarkError,
    ProcessTree,
    add_data_options,
    count,
    data_dir,
    footer,
    main,
    note,
    simulate,
    table,
)

SAMPLE_SECONDS = 0.5
GOAL_GIB = 8


def measure(options: argparse.Namespace) -> None:
    """Run the federation once and watch its memory."""
    if options.dataset == "digits":
        raise BenchmarkError("digits has 1,797 samples, too few for many clients; use mnist or fashion-mnist")
    if not Path("/proc/self/stat").is_file():
        note("without /proc the memory cannot be measured here")
    peak, peak_processes, proportional = 0, 0, True

    def sample(tree: ProcessTree) -> None:
        nonlocal peak, peak_processes, proportional
        resident, all_proportional = tree.resident()
        proportional = proportional and all_proportional
        if resident > peak:
            peak, peak_processes = resident, len(tree.members)

    note(f"fedpfl run with {options.clients} clients")
    run = simulate(
        {
            "method": options.method, "model": options.model, "dataset": options.dataset,
            "data-dir": data_dir(options.data_dir), "num-clients": options.clients, "fraction-train": options.fraction,
            "num-server-rounds": options.rounds + 1, "evaluate-every": 0, "seed": options.seed, "partitioner": "iid",
        },
        sample,
        SAMPLE_SECONDS,
    )  # fmt: skip
    first = run.seconds_to_first_step
    kind = "PSS, shared pages counted once" if proportional else "RSS, shared pages counted in every process"
    trained = [line["seconds_train"] for line in run.lines[1:]]
    print(
        table(
            ["what", "value", "goal"],
            [
                [
                    f"peak memory of all processes, GiB ({kind})",
                    f"{peak / GIB:.2f}" if peak else "unknown",
                    f"≤ {GOAL_GIB}",
                ],
                ["processes at the peak", str(peak_processes) if peak else "unknown", ""],
                ["seconds from the command to the first round", f"{first:.1f}" if first is not None else "unknown", ""],
                ["seconds of a training round (median)", f"{statistics.median(trained):.2f}", ""],
                [f"seconds to test all {options.clients} clients", f"{run.lines[-1]['seconds_evaluate']:.2f}", ""],
                ["seconds of the whole command", f"{run.seconds:.1f}", ""],
            ],
        )
    )
    print(
        f"\nWork: {options.method}, {options.model}, {options.dataset}, {len(run.lines[0]['clients'])} of "
        f"{options.clients} clients a round, {options.rounds} rounds after one that does not count; memory sampled "
        f"every {SAMPLE_SECONDS} s.\nFirst round: when metrics.jsonl got its first line, less that round's seconds."
    )
    print(footer(options.seed))


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="many_clients.py", description="Memory and time of a federation of many virtual clients on this machine."
    )
    add_data_options(parser, "fashion-mnist")
    parser.add_argument("--clients", type=count, default=1000, help="clients of the federation (%(default)s)")
    parser.add_argument("--fraction", type=float, default=0.01, help="share of them in a round (%(default)s)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--method", default="fedavg", help="method (%(default)s)")
    parser.add_argument("--model", default="fedavg-cnn", help="model (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
