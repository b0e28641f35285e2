"""Write the overview of all methods and a page for each: ``python docs/tools/method_pages.py``; ``make docs`` runs it.

It also does what ``fedpfl config --update`` does, so a new method needs this command alone.
What a method does, its paper, its equations and settings come from its code, what teaches (problem, use, tuning) from
``methods.toml``, and measured values and their pictures from the records.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from run_records import LEADERBOARD, against_local, one, over_seeds, ranks
from run_records import leaderboard as read_leaderboard
from torch import nn

from fedpfl.core.files import write_atomically
from fedpfl.core.settings import by_key
from fedpfl.core.sharing import Sharing
from fedpfl.flower.strategy import needs_of
from fedpfl.methods import Method, methods
from fedpfl.methods.advice import ADVICE
from fedpfl.methods.base import adapts_itself
from fedpfl.methods.bases.adapters import AdapterMethod
from fedpfl.models import BaseHeadModel
from fedpfl.setup import reference
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.study.experiment_file import load
from fedpfl.training.settings import TrainingSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REST = "Others"
# Where the number of all methods, and of those whose rule only adds, is said.
COUNTED = (
    "README.md", "AGENTS.md", "llms.txt", "pyproject.toml", "docs/index.md", "docs/reference/why.md",
    "docs/how-to/from-a-flower-app.md", "docs/how-to/secure-aggregation.md", "docs/how-to/faq.md",
    "docs/results/leaderboard.md",
)  # fmt: skip
SAID = re.compile(r"(compares |- \*\*|app: |learning: |fedpfl\*\*: |for all |the \d+ of )\d+ methods")
# Where the numbers of the leaderboard's methods are said, and of those that are significantly better than Local.
RANKED = re.compile(r"((?:best|one)\s+of\s+)\d+(?=\s+methods)|\d+(?=\s+methods\s+under\s+one\s+protocol)")
HIGHER = re.compile(r"\d+(?=\s+(?:methods\s+are\s+significantly|are\s+on\s+CIFAR-10|of\s+them\s+significantly))")
BOTH = re.compile(r"\d+(?=\s+of\s+them\s+also\s+with\s+the\s+seeds)")  # by both tests
# A list of methods in the prose of a page: what is before and after it, and which methods it has.
LISTED: dict[str, tuple[str, str, Callable[[Method], bool]]] = {
    "docs/how-to/models.md": ("need classes (", ")", lambda method: "loss" in method.refuses),
    "docs/how-to/robustness.md": (
        "only have the norm limit: ",
        ".",
        lambda method: method.name != "local" and bool(method.aggregation.rule.no_robust_mean),
    ),
}
# For whoever opens a page to edit it.
MADE = "<!-- docs/tools/method_pages.py -->"
# A row of the table of symbols, what it means, and the pattern of an algorithm that needs it.
SYMBOLS = (
    ("i, j, k; N", "clients; their number", r"(?<!\w)N(?!\w)"),
    (
        "x, y, s; c, d, C",
        "a sample and its label, a sample; classes, their number",
        r"(?<!\w)[xyC](?!\w)|_i?c(?!\w)|class c|sample s",
    ),
    ("n_i, n_ic", "number of training samples of client i, and of those with class c", r"(?<!\w)n_i"),
    ("f_i; CE", "mean loss over client i's samples; cross-entropy", r"(?<!\w)(f_i|CE)"),
    (
        "w = (θ, φ)",
        "model of base θ and head φ ([lessons](../learn/one-round.md): of shared and personal arrays); z = θ(x) are "
        "features, φ(z) logits",
        "[wθφz]",
    ),
    ("w_i; w", "client i's; the server's, as clients receive it", r"(?<!\w)[wθφ](?!\w|[̂̄])|_i(?!\w)"),
    ("v_i, p_i", "a second model, head or vector, which stays with the client", r"(?<!\w)[vp]_i"),
    (
        "train a, from b, on L",
        "E (`local-epochs`) epochs of SGD on L, in batches of B (`batch-size`) with step η (`learning-rate`); a starts "
        "at b, or as the client kept it",
        r"(?<!\w)train(?!\w)|η",
    ),
    ("mean; plain mean", "over the clients of a round: weighted by n_i; unweighted", r"(?<!\w)mean\("),
    ("⊙, ⟨ , ⟩, ∝", "product entry by entry; inner product; scaled to the sum 1", "[⊙⟨∝]"),
)
OVERVIEW = """\
# Methods

{made}

## Choose a method

{advice}

`fedpfl methods --choose` prints this table. [Learn](../learn/index.md) explains the families, [Add a method](../how-to/adding-a-method.md) how to write one.
To cite a method, take its paper's BibTeX entry from [references.bib](references.bib).

**Cost** of a round relative to FedAvg's, with default settings: a client's
[computation](../results/performance.md#cost-of-each-method) (1.0: no measurable difference), traffic and model memory.
Methods of adapters are compared with FedAvg of the whole model.

**Accuracies** are the [leaderboard](../results/leaderboard.md)'s, on HAR by person, Fashion-MNIST with Dir(0.1) and CIFAR-10
with Dir(0.5): mean over clients in percent ± standard deviation over three seeds, with tuned learning rates. Ranks are among
{measured} methods; significance is Wilcoxon's test with Holm's correction. Grey ticks in pictures are the other methods.

With `tune-epochs` clients fine-tune a copy before evaluation (FedAvg+, FedProx+); {own} adapt in their own
way. [`server-optimizer`](../reference/configuration.md#servers-step) makes FedAvgM, FedAdam and FedYogi of a mean,
[`robust-aggregation`](../how-to/robustness.md#robust-aggregation) limits malicious (Byzantine) clients, and in a
[Flower app](../how-to/from-a-flower-app.md) each method is a `fedpfl.strategies` class.

## Symbols

The algorithms of all pages, for one round:

{symbols}
"""  # noqa: E501


@cache
def groups() -> dict[str, dict[str, Any]]:
    """Return what teaches on the pages, by group and method; ``about`` is the group's own text."""
    tables: dict[str, dict[str, Any]] = tomllib.loads((DOCS / "tools" / "methods.toml").read_text(encoding="utf-8"))
    new = methods().keys() - {name for texts in tables.values() for name in texts}
    return {**tables, REST: {"about": "", **{name: {} for name in sorted(new)}}} if new else tables


def title_of(method: type[Method]) -> str:
    """Return what papers call a method: its file begins with that."""
    return _about(method)[0].partition(":")[0]


def pages() -> dict[Path, str]:
    """Return the overview, the methods' pages and the pictures, by their files."""
    made = {DOCS / "methods" / "index.md": overview(), DOCS / "learn" / "shared.svg": sharing_drawing()}
    for texts in groups().values():
        for name in texts.keys() - {"about"}:
            made[DOCS / "methods" / f"{name}.md"] = page(methods()[name], texts[name])
    made[DOCS / "methods" / "references.bib"] = bibliography()
    made |= {ROOT / path: counted((ROOT / path).read_text(encoding="utf-8")) for path in COUNTED}
    made |= {ROOT / path: listed(path) for path in LISTED}
    return made | {DOCS / "methods" / f"{name}.svg": drawing(name) for name in measured()}


def listed(path: str) -> str:
    """Return a page whose list names the methods that are so now."""
    before, after, belongs = LISTED[path]
    start, _, rest = (ROOT / path).read_text(encoding="utf-8").partition(before)
    _, _, end = rest.partition(after)
    names = [name for name, method in sorted(built().items()) if belongs(method)]
    *lines, line = f"{start}{before}".split("\n")
    text = textwrap.fill(f"{line}{', '.join(f'`{name}`' for name in names)}", 120, break_on_hyphens=False)
    return "\n".join([*lines, text]) + after + end


@cache
def built() -> dict[str, Method]:
    """Return every method as it is made of its settings' defaults."""
    return {name: method(method.Settings(), TrainingSettings()) for name, method in methods().items()}


def counted(text: str) -> str:
    """Return a page with its numbers of methods: all, the measured ones, those for which a sum is enough."""
    (cifar,) = (record for data, record in leaderboard().items() if data.startswith("CIFAR-10"))
    text = RANKED.sub(rf"\g<1>{len(measured())}", text)
    higher = {label for label, kind in against_local(cifar).items() if kind == "higher"}
    text = HIGHER.sub(str(len(higher)), text)
    text = BOTH.sub(str(len(higher & {*over_seeds(cifar["table"])})), text)
    sums = sum(method.aggregation.rule.only_a_sum for method in built().values())
    return SAID.sub(lambda said: f"{re.sub(r'[0-9]+', str(sums), said[1])}{len(methods())} methods", text)


def overview() -> str:
    """Return the page with a table of methods for each group."""
    adapting = ", ".join(title_of(method) for method in methods().values() if adapts_itself(method))
    data = list(leaderboard())
    lines = [
        OVERVIEW.format(made=MADE, own=adapting, advice=chooser(), measured=len(measured()), symbols=symbol_table())
    ]
    for group, texts in groups().items():
        lines += [f"## {group}", "", *([texts["about"], ""] if texts["about"] else [])]
        lines += [
            f"| method | use it if | computation | traffic | memory | {' | '.join(map(short, data))} |",
            "|---|---|" + "---:|" * (3 + len(data)),
        ]
        for name, of in texts.items():
            if name != "about":
                numbers = {} if name in LIKE_FEDAVG else measured().get(name, {})
                means = [numbers.get(column, [""])[0].split(" ")[0] for column in data]
                use = of.get("use", "").partition(". ")[0].rstrip(".")
                cells = (f"[{title_of(methods()[name])}]({name}.md)", use, *cost(name), *means)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def chooser() -> str:
    """Return the table of situations, with links to the methods."""
    rows = [["your situation", "try first", "instead", "why"], ["---"] * 4, *map(list, ADVICE)]

    def link(name: re.Match[str]) -> str:
        method = methods().get(name.group(1))
        return f"[{title_of(method)}]({method.name}.md)" if method else name.group()

    return "\n".join("| " + " | ".join(re.sub(r"`([\w-]+)`", link, cell) for cell in row) + " |" for row in rows)


def page(method: type[Method], texts: dict[str, Any]) -> str:
    """Return the page of a method."""
    first, about = _about(method)
    title, _, idea = first.partition(": ")
    name = method.name
    links = [f"[{method.paper}]({texts['link']})" if "link" in texts else method.paper]
    links += [f"[authors' code](https://github.com/{texts['code']})"] if "code" in texts else []
    links += [f"`{Path(inspect.getfile(method)).relative_to(ROOT)}`", f"`{strategy_of(method)}`"]
    links += [f'also `method = "{other}"`' for other in method.aliases]
    links += ["[BibTeX](references.bib)"] if _about(method)[1] else []
    lines = [f"# {title}", "", MADE, "", f"**{idea[:1].upper()}{idea[1:]}**", "", "; ".join(links)]
    if texts:
        lines += ["", f"**Problem.** {texts['problem']}"]
    if "idea" in texts:
        lines += ["", f"**Idea.** {texts['idea']}", "", "| shared | stays on the client |", "|---|---|"]
        lines += [f"| {texts['shared']} | {texts['stays']} |"]
    algorithm, notes = algorithm_of(method)
    lines += ["", "## Algorithm", "", "```text", algorithm, "```", "", notes, ""]
    lines += [symbol_table(algorithm), "", "[All symbols](index.md#symbols)", "", cost_line(name)]
    if texts:
        like = ", ".join(f"[{title_of(methods()[of])}]({of}.md)" for of in texts["like"])
        lines += ["", "## Use", "", f"**If:** {texts['use']}", "", f"**Not if:** {texts['avoid']}"]
        lines += ["", f"**Tuning:** {texts['tune']}", "", f"**Compare with** {like}."]
    lines += ["", "## Settings", "", "```sh", f"fedpfl run -c '{command_of(method)}'", "```", ""]
    lines += settings_lines(method)
    lines += [*_measured(name), "", texts.get("more", "")]
    if about:
        _, _, _, followed = citation(method)
        followed = f"the paper, {followed}" if followed[:1].islower() else followed
        lines += ["", "## Differences", "", f"Follows {followed}", "", about.partition("\n\n")[2]]
    text = re.sub(r"(?<!`)``(?!`)", "`", "\n".join([*lines, ""]))
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def symbol_table(algorithm: str = "") -> str:
    """Return the table of symbols, of an algorithm only the rows that it needs."""
    rows = [(symbol, meaning) for symbol, meaning, use in SYMBOLS if not algorithm or re.search(use, algorithm)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (("symbol", "meaning"), ("---", "---"), *rows))


def algorithm_of(method: type[Method]) -> tuple[str, str]:
    """Return the second paragraph of a method's class, which is its algorithm, and what follows."""
    _, _, text = (inspect.getdoc(method) or "").partition("\n\n")
    algorithm, _, notes = text.partition("\n\n")
    return algorithm, notes


def command_of(method: type[Method]) -> str:
    """Return the settings with which a method runs as it is meant."""
    slices = method(method.Settings(), TrainingSettings()).aggregation.rule.takes_slices
    settings = {**settings_of(method), **({"client-models": "0-4:@0.5"} if slices else {})}
    return " ".join([f'method="{method.name}"', *(f'{key}="{value}"' for key, value in settings.items())])


def settings_lines(method: type[Method]) -> list[str]:
    """Return a method's settings as a list; those that belong to another method are explained on its page."""
    lines, name, others = [], method.name, dict[str, list[str]]()
    for key, field in by_key(method.Settings, name).items():
        owners = [of for of in methods() if key.startswith(f"{of}-") and not key.startswith(f"{name}-")]
        if owners:
            others.setdefault(owners[0], []).append(f"`{key}`")
            continue
        limits = field.metadata["limits"]
        choices = limits.choices and [choice for choice in limits.choices() if choice not in field.metadata["doc"]]
        limits = f", {limits.describe()}" if choices or not isinstance(field.default, (bool, str)) else ""
        limits = re.sub(r"at least (\S+) and at most", r"\1 to", limits).replace("at least", "≥").replace("one of ", "")
        limits = re.sub(r"> (\S+) and at most (\S+)", r"in (\1, \2]", limits)
        lines.append(f"- `{key} = {json.dumps(field.default, ensure_ascii=False)}`{limits}: {field.metadata['doc']}")
    for other, keys in others.items():
        lines += [f"- {', '.join(keys)}: as for [{title_of(methods()[other])}]({other}.md#settings)."]
    return lines or ["Only [local training](../reference/configuration.md#local-training)'s."]


def strategy_of(method: type[Method]) -> str:
    """Return how a server of Flower's makes the method's strategy: with the model where arrays alone are not enough."""
    arguments = {key: f'"{value}"' for key, value in settings_of(method).items()}
    if needs_of(method(method.Settings(), TrainingSettings())):
        arguments = {"model": "Net", **arguments}
    return f"strategies.{method.__name__}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def settings_of(method: type[Method]) -> dict[str, str]:
    """Return the settings that a method cannot run without."""
    return {"model": "small-vit", "trainable": "lora"} if issubclass(method, AdapterMethod) else {}


def _about(method: type[Method]) -> tuple[str, str]:
    """Return the first line of a method's file, and the rest of its text."""
    first, _, rest = (inspect.getdoc(inspect.getmodule(method)) or "").partition("\n")
    return first, rest.strip()


def citation(method: type[Method]) -> tuple[list[str], str, str, str]:
    """Return authors, title, and venue with year of a method's paper, and what its file says of it besides."""
    authors, _, rest = " ".join(_about(method)[1].partition("\n\n")[0].split()).partition(": ")
    parts = re.match(
        r"(?P<title>.+?)(?:, (?P<when>(?:IEEE [^,]*, |[A-Z][A-Za-z ]* )?20\d\d)(?: \([^)]*\))?)?, "
        "(?P<rest>(?:Sect|Algo|Equa|with ).*)",
        rest,
    )
    if not parts:
        raise ValueError(f"{method.name}: its file begins with no citation: {rest!r}")
    return authors.split(", "), parts["title"], parts["when"] or "", parts["rest"]


def bibliography() -> str:
    """Return the methods' papers in BibTeX; a field that is not known is left out, as authors' first names are."""
    lines = ["% written by docs/tools/method_pages.py from the methods' files and docs/tools/methods.toml"]
    for texts in groups().values():
        for name, of in texts.items():
            if name == "about" or not _about(methods()[name])[1]:
                continue
            authors, title, when, _ = citation(methods()[name])
            venue, year = when[:-4].rstrip(", "), when[-4:]
            journal = re.fullmatch(r"(.*) (\d+)\((\d+)\)", venue)
            where = dict(zip(("journal", "volume", "number"), journal.groups(), strict=True)) if journal else {}
            where = where or ({"booktitle": venue} if venue else {})
            kind = "article" if journal else "inproceedings" if venue else "misc"
            names = " and ".join(f"{{{author}}}" if " " in author else author for author in authors)
            fields = {"author": names, "title": f"{{{title}}}", **where, "year": year, "url": of.get("link", "")}
            entry = [f"  {key} = {{{value}}}," for key, value in fields.items() if value]
            lines += ["", f"@{kind}{{{name},", *entry, "}"]
    return "\n".join([*lines, ""]).replace("&", r"\&")


# -- what is shared ----------------------------------------------------------------------------------------------------

DRAWN = (
    "local", "fedavg", "fedper", "fedrod", "lg-fedavg", "fedbn", "feddecomp", "pfedpara", "factorized-fl", "ditto",
    "fedcp", "fedproto",
)  # fmt: skip
LAYERS = ("base.conv1", "base.norm1", "base.conv2", "base.norm2", "head")


def sharing_drawing() -> str:
    """Return a picture of which arrays of a small network each of some methods shares."""
    parts = [
        f'<text x="{150 + 62 * column}" y="14" fill="{GREY}">{layer.rpartition(".")[2]}</text>'
        for column, layer in enumerate(LAYERS)
    ]
    parts.append(f'<text x="{150 + 62 * len(LAYERS)}" y="14" fill="{GREY}">added</text>')
    for row, name in enumerate(DRAWN):
        made = methods()[name](methods()[name].Settings(), TrainingSettings())
        base = nn.Sequential()
        for number, (into, out) in enumerate([(1, 4), (4, 8)], start=1):
            base.add_module(f"conv{number}", nn.Conv2d(into, out, 3))
            base.add_module(f"norm{number}", nn.BatchNorm2d(out))
        base.add_module("flat", nn.Flatten())
        split = made.sharing(made.build(BaseHeadModel(base, nn.Linear(8 * 24 * 24, 10))))
        top = 24 + 26 * row
        parts.append(f'<text x="10" y="{top + 15}" fill="{GREY}">{title_of(methods()[name])}</text>')
        for column, layer in enumerate((*LAYERS, "")):
            of = [[array for array in arrays if _layer(array) == layer] for arrays in (split.shared, split.personal)]
            for half, (arrays, colour) in enumerate(zip(of, (BLUE, LIGHT), strict=True)):
                if arrays:
                    wide = 25 if all(of) else 50
                    left = 150 + 62 * column + (25 * half if all(of) else 0)
                    parts.append(f'<path d="M{left} {top}h{wide}v20h-{wide}z" fill="{colour}"/>')
    height = 24 + 26 * len(DRAWN) + 26
    for left, colour, word in ((150, BLUE, "shared"), (250, LIGHT, "personal")):
        parts.append(f'<path d="M{left} {height - 22}h20v14h-20z" fill="{colour}"/>')
        parts.append(f'<text x="{left + 26}" y="{height - 10}" fill="{GREY}">{word}</text>')
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([start, *parts, "</svg>", ""])


def _layer(array: str) -> str:
    return next((layer for layer in LAYERS if array.startswith(f"{layer}.")), "")


# -- what was measured -------------------------------------------------------------------------------------------------

WIDTH, ROW, MARGIN = 520, 94, 10
BLUE, GREY, LIGHT = "#197cd4", "#5f6b7a", "#b9c2cc"
BASELINES = {"local": "Local", "fedavg": "FedAvg"}
LINKED = "[{}](../results/leaderboard.md)"
VERDICTS = {"higher": "better", "lower": "worse"}
# What the leaderboard's protocol makes of a method.
LIKE_FEDAVG = {
    "fedbn": "First of 14 methods where cameras differ "
    "([leaderboard](../results/leaderboard.md#where-one-model-fails-in-a-known-way)). **These are FedAvg's numbers**, "
    "as these networks have no BatchNorm",
    "clustered-fl": "**These are FedAvg's numbers**: 15 rounds, and the first split is in round 21",
}


@cache
def leaderboard() -> dict[str, dict[str, Any]]:
    """Return the leaderboard by data set; all pages read its records once."""
    return read_leaderboard()


@cache
def measured() -> dict[str, dict[str, list[str]]]:
    """Return the first three columns of the leaderboard, by method and data set."""
    methods_of = {label: str(row.settings["method"]) for label, row in load(LEADERBOARD).rows.items()}
    scores: dict[str, dict[str, list[str]]] = {}
    for data, record in leaderboard().items():
        for label, *values in record["table"][1:]:
            scores.setdefault(methods_of[label], {})[data] = values[:3]
    return scores


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
            x = across(means[method])
            anchor = "start" if x < WIDTH / 4 else "end" if x > 3 * WIDTH / 4 else "middle"
            # The method's name stands above the ticks, Local's and FedAvg's below them, a line each.
            place = line - 12 if method == name else line + 20 + 14 * list(BASELINES).index(method)
            parts.append(f'<path d="M{x:.1f} {line - 8}v16" stroke="{colour}" stroke-width="3"/>')
            where = f'x="{x:.1f}" y="{place}" text-anchor="{anchor}" fill="{colour}"'
            parts.append(f"<text {where}>{heading} {means[method]:.1f}</text>")
    height = ROW * len(data_sets)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([start, *parts, "</svg>", ""])


# FedAvg's round measured against itself differed by up to 0.06.
NOISE = 0.1


@cache
def cost(name: str) -> tuple[str, str, str]:
    """Return computation, traffic and a client's memory relative to FedAvg's; "" where it was not measured."""
    times = one("figures/methods-cost")["values"]
    ratios = {of: values["s a round"][0] / times["fedavg"]["s a round"][0] for of, values in times.items()}
    # Later measured: newer methods, and those that need what the server's rule sends.
    later = one("figures/methods-computation")["values"]
    ratios |= {of: median(values["of FedAvg's round"]) for of, values in later.items()}
    computation = f"{1 if abs(ratios[name] - 1) < NOISE else ratios[name]:.1f}" if name in ratios else ""
    adapted = settings_of(methods()[name])
    model = {"model": adapted.get("model", "fedavg-cnn")}
    (plain, _), (made, sharing) = assembled("fedavg", model), assembled(name, {**model, **adapted})
    memory = f"{numbers_in(made) / numbers_in(plain):.1f}"
    if adapted:
        return computation, f"{sharing.layout.size / numbers_in(plain):.2f}", memory
    (record,) = (of for data, of in leaderboard().items() if data.startswith("CIFAR-10"))
    column = record["table"][0].index("MB")
    labels = {label: str(row.settings["method"]) for label, row in load(LEADERBOARD).rows.items()}
    sent = {labels[row[0]]: float(row[column].split()[0]) for row in record["table"][1:]}
    (counted,) = later.get(name, {}).get("of FedAvg's bytes", [None])  # of a round, where the leaderboard has none
    counted = sharing.layout.size / numbers_in(plain) if counted is None else counted  # of arrays as they are declared
    moved = sent[name] / sent["fedavg"] if name in sent else counted
    little = "< 0.01" if name not in sent else "0"
    traffic = f"{moved:.2f}".rstrip("0").rstrip(".") if moved >= 0.005 else little
    return computation, traffic, memory


def assembled(name: str, settings: dict[str, str]) -> tuple[nn.Module, Sharing]:
    """Return a client's model with a method, and its sharing, for grey images."""
    return assemble(Config.parse({"method": name, **settings}), (1, 28, 28), 10)


def numbers_in(model: nn.Module) -> int:
    """Return how many numbers a model has, running statistics and what is frozen included."""
    return sum(array.numel() for array in chain(model.parameters(), model.buffers()))


def cost_line(name: str) -> str:
    """Return in what a round's cost with a method differs from FedAvg's."""
    named = zip(("computation", "traffic", "memory"), cost(name), strict=True)
    other = [f"{what} {times or 'not measured'}" for what, times in named if times not in ("1", "1.0")]
    return f"**Cost** (FedAvg: 1): {', '.join(other)}." if other else "**Cost:** FedAvg's."


def _measured(name: str) -> list[str]:
    if name not in measured():
        rows = [row.settings["method"] for row in load(LEADERBOARD).rows.values()]
        later = ["", "## Measured", "", f"Not yet in the {LINKED.format('leaderboard')}."] if name in rows else []
        return later + _measured_on_digits(name)
    results, verdicts = [], dict[str, list[str]]()
    for data, (mean, *_) in measured()[name].items():
        ranked = ranks(leaderboard()[data]["table"])
        label = next(of for of, row in load(LEADERBOARD).rows.items() if row.settings["method"] == name)
        few = (
            re.match(rf"Only (\d+ seeds?): .*{re.escape(label)}[;.]", said) for said in leaderboard()[data]["remarks"]
        )
        rank = 1 + sum(of < ranked[label] for of in ranked.values())
        place = ", ".join([ordinal(rank), *(match[1] for match in few if match)])
        results.append(f"{short(data) if results else LINKED.format(short(data))} **{mean}** ({place})")
        kind = against_local(leaderboard()[data]).get(label)
        if kind:
            verdicts.setdefault(VERDICTS[kind], []).append(short(data))
    only = "" if sum(map(len, verdicts.values())) == len(results) else "only "
    places = {what: " and ".join(of) if len(of) < 3 else "all three" for what, of in verdicts.items()}
    said = (f"{what} than Local {only}on {of}" for what, of in places.items())
    verdict = f"Significantly {', '.join(said)}" if verdicts else "No significant difference from Local"
    lead = LIKE_FEDAVG.get(name, "The baseline" if name == "local" else verdict)
    picture = f"![Accuracies]({name}.svg)"
    return ["", "## Measured", "", f"{lead}: {', '.join(results)}.", "", picture]


def _measured_on_digits(name: str) -> list[str]:
    """Return how a method that the leaderboard does not have did in a small comparison."""
    record = one("figures/methods-on-digits")
    if name not in record["values"]:
        return []
    accuracy = {of: record["values"][of]["accuracy"] for of in (name, *BASELINES)}
    others = ", ".join(f"{BASELINES[of]} {accuracy[of]}" for of in BASELINES)
    said = (
        f"On digits, after 8 rounds with as many gradients for each method: **{accuracy[name]} %**; {others} (3 seeds)."
    )
    return ["", said, "", "```sh", record["command"], "```"]


def short(data: str) -> str:
    """Return the name of a data set without how it is divided."""
    return data.partition(",")[0].removesuffix(" by person")


def ordinal(rank: int) -> str:
    """Return a rank as it is read."""
    ending = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"


def main() -> None:
    """Write the settings and pages that differ, and delete those of methods that are gone."""
    for path in reference.update(ROOT):
        print(f"wrote {path.relative_to(ROOT)}")
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
