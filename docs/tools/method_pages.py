"""Write the overview of all methods and a page for each: ``python docs/tools/method_pages.py``; ``make docs`` runs it.

What a method does, its paper, its equations and settings come from its code, the groups and when to choose it from
``methods.toml``, and measured values from the leaderboard's records. The curves are drawn from the record that
``method_curves.py`` writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from functools import cache
from pathlib import Path

from run_records import LEADERBOARD, leaderboard

from fedpfl.core.extras import describe
from fedpfl.core.files import write_atomically
from fedpfl.experiments.description import load
from fedpfl.flower.strategy import needs_of
from fedpfl.methods import Method, methods
from fedpfl.methods.adapted import AdapterMethod
from fedpfl.setup.reference import settings_table
from fedpfl.training.settings import TrainingSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CURVES = "method-curves"
REST = "Others"
OVERVIEW = """\
# Methods

Each method has a page: its equations, when to choose it, its settings, where it differs from the paper, and what was
measured. To write your own, see [Add a method](adding-a-method.md).

With `tune-epochs=5` each client trains a copy of its model before every test, with any method (FedAvg+, FedProx+). If a
method's rule is a mean, the server can also take a larger or smaller step towards it, as in FedAvgM, FedAdam and
FedYogi: [`server-optimizer`](configuration.md#servers-step). Or it takes an estimate that false clients cannot move
far: [`robust-aggregation`](robustness.md#robust-aggregation).

In the equations client i has n_i samples and the loss f_i. θ is the base of a model, φ its head, w both. E, B and η are
the settings `local-epochs`, `batch-size` and `learning-rate` ([Settings](configuration.md)). What travels is given for
the default settings.
"""


@cache
def groups() -> dict[str, dict[str, str]]:
    """Return when to choose which method, by group and name; ``about`` is the group's own text."""
    found: dict[str, dict[str, str]] = tomllib.loads((DOCS / "tools" / "methods.toml").read_text(encoding="utf-8"))
    new = methods().keys() - {name for texts in found.values() for name in texts}
    return {**found, REST: {"about": "", **dict.fromkeys(sorted(new), "")}} if new else found


def title_of(method: type[Method]) -> str:
    """Return what papers call a method: its file begins with that."""
    return _about(method)[0].partition(":")[0]


def pages() -> dict[Path, str]:
    """Return the overview and the methods' pages, by their files."""
    made = {DOCS / "methods.md": overview()}
    for group, texts in groups().items():
        for name in texts.keys() - {"about"}:
            made[DOCS / "methods" / f"{name}.md"] = page(methods()[name], group, texts[name])
    return made | {DOCS / "methods" / f"{name}.svg": drawing(curves) for name, curves in recorded_curves().items()}


def overview() -> str:
    """Return the page with a table of methods for each group."""
    lines = [OVERVIEW]
    for group, texts in groups().items():
        lines += [f"## {group}", "", *([texts["about"], ""] if texts["about"] else [])]
        lines += ["| method | what it does | what travels |", "|---|---|---|"]
        for name in texts:
            if name != "about":
                method = methods()[name]
                does = _about(method)[0].partition(": ")[2]
                cells = (f"[{title_of(method)}](methods/{name}.md)", f"{does[:1].upper()}{does[1:]}", method.shares)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def page(method: type[Method], group: str, choose: str) -> str:
    """Return the page of a method."""
    first, about = _about(method)
    names = [f'`method = "{name}"`' for name in (method.name, *method.aliases)]
    facts = {
        "paper": method.paper,
        "group": f"[{group}](../methods.md#{_anchor(group)})",
        "setting": " or ".join(names),
    }
    rows = [*facts.items(), ("what travels", method.shares)]
    rows += [("in addition", describe(extra)) for extra in method(method.Settings(), TrainingSettings()).extras]
    lines = [f"# {title_of(method)}", "", first, "", "|  |  |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    if choose:
        lines += ["", "## When to choose it", "", choose.replace("](", "](../")]
    lines += ["", "## What it computes", "", inspect.getdoc(method) or ""]
    if method.equations:
        lines += ["", "```math", *method.equations.split("\n"), "```"]
    lines += ["", "## The paper, and where this differs", "", about]
    more = "".join(f' {key}="{value}"' for key, value in settings_of(method).items())
    lines += [
        "",
        "## Command",
        "",
        "```sh",
        f"fedpfl run -c 'method=\"{method.name}\"{more}'",
        "```",
        "",
        f"As a [Flower strategy](../from-a-flower-app.md): `{strategy_of(method)}`.",
        "",
        "## Settings",
        "",
    ]
    if dataclasses.fields(method.Settings):
        lines += settings_table(method.Settings, method.name)
    else:
        lines += ["It has no settings besides those of [local training](../configuration.md#local-training)."]
    lines += [*_curve(method), *_measured(method.name)]
    return re.sub(r"(?<!`)``(?!`)", "`", "\n".join([*lines, ""]))


def strategy_of(method: type[Method]) -> str:
    """Return how a server of Flower's makes the method's strategy: with the model where arrays alone are not enough."""
    words = {key: f'"{value}"' for key, value in settings_of(method).items()}
    if needs_of(method(method.Settings(), TrainingSettings())):
        words = {"model": "Net", **words}
    return f"strategies.{method.__name__}({', '.join(f'{key}={value}' for key, value in words.items())})"


def settings_of(method: type[Method]) -> dict[str, str]:
    """Return the settings that a method cannot run without."""
    return {"model": "small-vit", "trainable": "lora"} if issubclass(method, AdapterMethod) else {}


def _about(method: type[Method]) -> tuple[str, str]:
    """Return the first line of a method's file, and the rest of its text."""
    first, _, rest = (inspect.getdoc(inspect.getmodule(method)) or "").partition("\n")
    return first, rest.strip()


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- what was measured -------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 480, 240, 40
BLUE, GREY, LIGHT = "#197cd4", "#5f6b7a", "#d8dde3"


@cache
def recorded_curves() -> dict[str, dict[str, list[float]]]:
    """Return accuracies in percent by method: its own, those of ``fedavg`` and those of ``local``, for each round."""
    path = DOCS / "records" / "figures" / f"{CURVES}.json"
    found: dict[str, dict[str, list[float]]] = json.loads(path.read_text(encoding="utf-8"))["values"]
    return found


def drawing(curves: dict[str, list[float]]) -> str:
    """Return curves over the rounds as SVG, each with its name at its end; the first is the one in colour."""
    values = [value for curve in curves.values() for value in curve]
    low, high = min(values) // 10 * 10, -(-max(values) // 10) * 10
    right, bottom, rounds = WIDTH - 130, HEIGHT - MARGIN, len(values) // len(curves)

    def across(number: int) -> float:
        return MARGIN + (right - MARGIN) * (number - 1) / (rounds - 1)

    def up(value: float) -> float:
        return bottom - (bottom - 15) * (value - low) / (high - low)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for tick in range(int(low), int(high) + 1, 10 if high - low <= 50 else 20):
        parts.append(f'<path d="M{MARGIN} {up(tick):.1f}H{right}" stroke="{LIGHT}"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for number in (1, rounds // 2, rounds):
        parts.append(f'<text x="{across(number):.1f}" y="{bottom + 16}" text-anchor="middle">{number}</text>')
    parts.append(f'<text x="{(MARGIN + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">round</text>')
    # Names from top to bottom as the curves end, each at least a line below the one before.
    place, main = 0.0, next(iter(curves))
    for name in sorted(curves, key=lambda name: -curves[name][-1]):
        curve, colour = curves[name], BLUE if name == main else GREY
        dashes = {"local": ' stroke-dasharray="2 3"', "fedavg": ' stroke-dasharray="6 3"'}.get(name, "")
        points = " ".join(f"{across(number):.1f},{up(value):.1f}" for number, value in enumerate(curve, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        place = max(up(curve[-1]) + 4, place + 15)
        parts.append(f'<text x="{right + 8}" y="{place:.1f}" fill="{colour}">{name}</text>')
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{GREY}">'
    return "\n".join([start, *parts, "</svg>", ""])


def _curve(method: type[Method]) -> list[str]:
    """Return the section with a method's curve; nothing if none was recorded."""
    if method.name not in recorded_curves():
        return []
    curves = recorded_curves()[method.name]
    ends = ", ".join(f"`{name}` {curve[-1]:.1f} %" for name, curve in curves.items())
    rounds = len(curves[method.name])
    settings = '`model = "mlp"`'
    if issubclass(method, AdapterMethod):
        settings += ', `trainable = "lora"` and `learning-rate = 0.005` for all three (the frozen layers have random'
        settings += " weights; at the default rate, 0.02, clients' training diverges)"
    picture = f"Personalised accuracy over {rounds} rounds, with FedAvg and local training"
    return [
        "", "## Accuracy over rounds", "", f"![{picture}]({method.name}.svg)", "",
        f"The mean accuracy of the clients' personalised models, in percent. After round {rounds}: {ends}.",
        f"The data are scikit-learn's digits, divided among ten clients; {settings}, otherwise default settings.",
        "One seed: an illustration, not evidence. `python docs/tools/method_curves.py` runs all methods.",
    ]  # fmt: skip


@cache
def _leaderboard() -> dict[str, dict[str, list[str]]]:
    """Return the first three columns of the leaderboard, by method and data set."""
    methods_of = {label: str(row.settings["method"]) for label, row in load(LEADERBOARD).rows.items()}
    found: dict[str, dict[str, list[str]]] = {}
    for data, record in leaderboard().items():
        for label, *values in record["table"][1:]:
            found.setdefault(methods_of[label], {})[data] = values[:3]
    return found


def _measured(name: str) -> list[str]:
    if name not in _leaderboard():
        return []
    rows = [f"| {data} | {' | '.join(values)} |" for data, values in _leaderboard()[name].items()]
    head = ["| data | mean over clients, % | over Local | worst tenth, % |", "|---|---:|---:|---:|"]
    said = "From the [leaderboard](../leaderboard.md), which explains the protocol."
    return ["", "## Measured", "", *head, *rows, "", said]


def main() -> None:
    """Write the pages that differ, and delete those of methods that are gone."""
    made = pages()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text.encode())
            print(f"wrote {path.relative_to(ROOT)}")
    for path in set((DOCS / "methods").rglob("*.*")) - made.keys():
        path.unlink()
        print(f"deleted {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
