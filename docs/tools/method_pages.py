"""Write the overview of all methods and a page for each: ``python docs/tools/method_pages.py``; ``make docs`` runs it.

What a method does, its paper, its equations and settings come from its code, the groups and when to choose it from
``methods.toml``, and measured values and their pictures from the leaderboard's records.
"""

from __future__ import annotations

import dataclasses
import inspect
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
from fedpfl.methods.base import adapts_itself
from fedpfl.methods.bases.adapted import AdapterMethod
from fedpfl.setup.reference import settings_table
from fedpfl.training.settings import TrainingSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REST = "Others"
# For whoever opens a page to edit it.
MADE = "<!-- written by docs/tools/method_pages.py from the method's file and docs/tools/methods.toml -->"
OVERVIEW = """\
# Methods

{made}

Each method has a page: its equations, when to choose it, its settings, where it differs from the paper, and what was
measured. To write your own, see [Add a method](adding-a-method.md).

With `tune-epochs=5` each client trains a copy of its model before every test (FedAvg+, FedProx+). Six methods make the
model that they test in another way, and the setting changes nothing with them: {own}.

If a method's rule is a mean, the server can also take a larger or smaller step towards it, as in FedAvgM, FedAdam and
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
    return made | {DOCS / "methods" / f"{name}.svg": drawing(name) for name in measured()}


def overview() -> str:
    """Return the page with a table of methods for each group."""
    own = ", ".join(title_of(method) for method in methods().values() if adapts_itself(method))
    lines = [OVERVIEW.format(made=MADE, own=own)]
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
    lines = [f"# {title_of(method)}", "", MADE, "", first, "", "|  |  |", "|---|---|"]
    lines += [f"| {a} | {b} |" for a, b in rows]
    if choose:
        lines += ["", "## When to choose it", "", choose.replace("](", "](../")]
    lines += ["", "## What it computes", "", inspect.getdoc(method) or ""]
    if method.equations:
        lines += ["", "```math", *method.equations.split("\n"), "```"]
    if about:
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
    lines += _measured(method.name)
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

WIDTH, ROW, MARGIN = 520, 94, 10
BLUE, GREY, LIGHT = "#197cd4", "#5f6b7a", "#b9c2cc"
BASELINES = {"local": "Local", "fedavg": "FedAvg"}
# What the leaderboard's protocol makes of a method.
LIKE_FEDAVG = {
    "fedbn": "**These are FedAvg's numbers**: the leaderboard's networks have no BatchNorm. They say nothing of FedBN.",
    "clustered-fl": "**These are FedAvg's numbers**: clients are split in round 21 at the earliest "
    "(`clustered-fl-first-split`), and these runs had 15 rounds. They say nothing of Clustered-FL.",
}


@cache
def measured() -> dict[str, dict[str, list[str]]]:
    """Return the first three columns of the leaderboard, by method and data set."""
    methods_of = {label: str(row.settings["method"]) for label, row in load(LEADERBOARD).rows.items()}
    found: dict[str, dict[str, list[str]]] = {}
    for data, record in leaderboard().items():
        for label, *values in record["table"][1:]:
            found.setdefault(methods_of[label], {})[data] = values[:3]
    return found


def drawing(name: str) -> str:
    """Return a picture of a method: for each data set all methods as ticks; it, Local and FedAvg with their names."""
    parts, data_sets = [], measured()[name]
    for number, data in enumerate(data_sets):
        means = {method: float(of[data][0].split()[0]) for method, of in measured().items() if data in of}
        low, high = min(means.values()), max(means.values())
        top = number * ROW

        def across(value: float, low: float = low, high: float = high) -> float:
            return MARGIN + (WIDTH - 2 * MARGIN) * (value - low) / (high - low)

        line = top + 46
        parts.append(f'<text x="{MARGIN}" y="{top + 14}" fill="{GREY}">{data}: {low:.1f} to {high:.1f} %</text>')
        parts += [f'<path d="M{across(mean):.1f} {line - 5}v10" stroke="{LIGHT}"/>' for mean in means.values()]
        for method in (*(other for other in BASELINES if other != name), name):
            colour, heading = (BLUE, title_of(methods()[name])) if method == name else (GREY, BASELINES[method])
            at = across(means[method])
            anchor = "start" if at < WIDTH / 4 else "end" if at > 3 * WIDTH / 4 else "middle"
            # The method's name stands above the ticks, Local's and FedAvg's below them, a line each.
            place = line - 12 if method == name else line + 20 + 14 * list(BASELINES).index(method)
            parts.append(f'<path d="M{at:.1f} {line - 8}v16" stroke="{colour}" stroke-width="3"/>')
            where = f'x="{at:.1f}" y="{place}" text-anchor="{anchor}" fill="{colour}"'
            parts.append(f"<text {where}>{heading} {means[method]:.1f}</text>")
    height = ROW * len(data_sets)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([start, *parts, "</svg>", ""])


def _measured(name: str) -> list[str]:
    if name not in measured():
        return []
    headings = {name: f"**{title_of(methods()[name])}**"} | {of: label for of, label in BASELINES.items() if of != name}
    rows = [
        f"| {data} | {heading} | {' | '.join(measured()[method][data])} |"
        for data in measured()[name]
        for method, heading in headings.items()
    ]
    head = ["| data | method | mean over clients, % | over Local | worst tenth, % |", "|---|---|---:|---:|---:|"]
    picture = "Accuracy on three data sets, with Local, FedAvg and all other methods"
    notes = [LIKE_FEDAVG[name], ""] if name in LIKE_FEDAVG else []
    return [
        "", "## Measured", "", *notes, f"![{picture}]({name}.svg)", "",
        "Mean ± standard deviation over three seeds; each grey tick is another method.", "", *head, *rows, "",
        "From the [leaderboard](../leaderboard.md), which explains the protocol and lists significant differences.",
    ]  # fmt: skip


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
