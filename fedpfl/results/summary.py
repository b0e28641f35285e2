"""What came out of a run: in numbers, and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .run import RunFolder

OUTCOME_KEYS = (
    "folder", "rounds", "personalised_accuracy", "global_accuracy", "best_personalised_accuracy",
    "best_global_accuracy", "seconds_per_round", "bytes_up", "bytes_down", "epsilon", "delta",
)  # fmt: skip


def outcome(folder: RunFolder) -> dict[str, Any]:
    """Return the outcome of a run as ``fedpfl run --json`` prints it, without ``run`` and ``status``."""
    lines = folder.metrics()
    personalised = [line["personalised"]["accuracy"] for line in lines if "personalised" in line]
    shared = [line["global"]["accuracy"] for line in lines if "global" in line]
    spent = lines[-1].get("privacy", {}) if lines else {}
    return {
        "folder": str(folder.path),
        "rounds": lines[-1]["round"] if lines else 0,
        "personalised_accuracy": personalised[-1] if personalised else None,
        "global_accuracy": shared[-1] if shared else None,
        "best_personalised_accuracy": max(personalised, default=None),
        "best_global_accuracy": max(shared, default=None),
        "seconds_per_round": statistics.median(line["seconds"] for line in lines) if lines else None,
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "epsilon": spent.get("epsilon"),
        "delta": spent.get("delta"),
    }


def summary(folder: RunFolder) -> str:
    """Write the outcome of a run as Markdown."""
    values, result, lines = folder.config(), outcome(folder), folder.metrics()
    rows = [
        ("personalised accuracy, last round", _percent(result["personalised_accuracy"])),
        ("personalised accuracy, best round", _percent(result["best_personalised_accuracy"])),
        ("global accuracy, last round", _percent(result["global_accuracy"])),
        ("global accuracy, best round", _percent(result["best_global_accuracy"])),
        ("seconds per round (median)", f"{result['seconds_per_round']:.2f}"),
        ("bytes up / down", f"{result['bytes_up']:,} / {result['bytes_down']:,}"),
    ]
    chosen = _at_best_validation(lines)
    if chosen:
        number, validation, accuracy = chosen
        rows.insert(2, (f"best on samples for validation: round {number}", f"{_percent(validation)}"))
        rows.insert(3, ("personalised accuracy in that round", _percent(accuracy)))
    if folder.stalled(values.get("early-stop", 0)):
        rows.append(("ended early", f"no better validation for {values['early-stop']} rounds"))
    last = next((line["personalised"] for line in reversed(lines) if "personalised" in line), None)
    if last:
        worst = sorted(last["each"].values())
        tenth = worst[: max(1, len(worst) // 10)]
        rows.append(("clients' accuracy: std / mean of the worst tenth", f"{_percent(last['std'])} / "
                     f"{_percent(statistics.fmean(tenth))}"))  # fmt: skip
    spent = lines[-1].get("privacy") if lines else None
    if spent:
        rows.append(("privacy of a client's updates", f"ε = {spent['epsilon']:.2f} at δ = {spent['delta']:g} (noise at "
                     f"the {values['dp-where']}; against other updates in their place "
                     f"ε = {spent['epsilon-replaced']:.2f})"))  # fmt: skip
    mean_model = any("bytes_evaluation_only" in line for line in lines)
    tested = "the mean of the clients' whole models" if mean_model else "the shared model"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        f"# {folder.path.name}\n\n"
        f"{values['method']} on {values['dataset']} ({values['partitioner']}), model {values['model']}, "
        f"{result['rounds']} rounds, seed {values['seed']}.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"Personalised: mean over clients of the accuracy on their own test samples. Global: {tested} on the\n"
        "union of all test samples. All settings: `config.toml`; every round: `metrics.jsonl`.\n"
    )


def _at_best_validation(lines: Sequence[Mapping[str, Any]]) -> tuple[int, float, float] | None:
    """Return (round, accuracy on samples for validation, on test samples) of the round with the best validation."""
    validated = [line for line in lines if "validation" in line and "personalised" in line]
    if not validated:
        return None
    best = max(validated, key=lambda line: float(line["validation"]["accuracy"]))
    return best["round"], best["validation"]["accuracy"], best["personalised"]["accuracy"]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
