"""The pages of the methods: made from the code, and one for each."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from fedpfl.cli.common import overrides
from fedpfl.core.settings import keys
from fedpfl.methods import methods
from fedpfl.methods.advice import ABOVE_LOCAL, ADVICE
from fedpfl.setup.config import Config

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import method_pages  # noqa: E402
import picture  # noqa: E402


def test_pages_are_what_the_code_says():
    made = method_pages.pages()
    there = set((ROOT / "docs" / "methods").rglob("*.*"))
    assert there == {path for path in made if path.parent.name == "methods"}
    different = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not different, "python docs/tools/method_pages.py writes them"


def test_every_method_is_in_one_group_and_has_what_teaches():
    texts = [(name, of) for group in method_pages.groups().values() for name, of in group.items() if name != "about"]
    assert sorted(name for name, _ in texts) == sorted(methods())
    assert method_pages.REST not in method_pages.groups(), "docs/tools/methods.toml lacks a method"
    for name, of in texts:
        teaches = {"idea", "shared", "stays", "problem", "use", "avoid", "tune", "like"}
        assert of.keys() - {"link", "code", "more"} == teaches, name
        assert {*of["like"]} <= methods().keys() - {name}, name
    # These have no address: a baseline, and a paper of which none is known.
    assert {name for name, of in texts if "link" not in of} == {"local", "fedreg"}


def test_the_advice_agrees_with_the_leaderboard():
    named = {name for row in ADVICE for cell in row for name in re.findall(r"`([a-z-]+)`", cell)}
    assert named <= {*methods(), "tune-epochs"}
    means = {
        name: [float(cells[0].split()[0]) for cells in columns.values()]
        for name, columns in method_pages.measured().items()
    }
    above = {name for name, values in means.items() if all(map(float.__gt__, values, means["local"]))}
    for row in ADVICE:
        if row.evidence.startswith(ABOVE_LOCAL):
            assert {*re.findall(r"`([a-z-]+)`", row.first)} <= above, row
    columns = list(zip(*means.values(), strict=True))

    def rank(name):
        return sum(sum(other > mean for other in column) for mean, column in zip(means[name], columns, strict=True))

    (row,) = (row for row in ADVICE if row.evidence == "leaderboard: best mean rank")
    best, second, *_ = sorted(means, key=rank)
    assert row.first == f"`{best}`" and f"`{second}`, second" in row.instead
    on_har = dict(zip(means, columns[0], strict=True))
    for name, place in (part for row in ADVICE for part in re.findall(r"`([a-z-]+)`: (\w+) on HAR", row.instead)):
        better = sum(mean > on_har[name] for mean in on_har.values())
        assert ["first", "second", "third", "fourth", "fifth"][better] == place, name


def test_settings_that_teach_exist():
    names_of_settings = {key for method in methods().values() for key in keys(method.Settings, method.name)}
    names = "|".join(sorted(methods(), key=len, reverse=True))
    for group in method_pages.groups().values():
        for text in (
            text for of in group.values() if isinstance(of, dict) for text in of.values() if isinstance(text, str)
        ):
            assert set(re.findall(rf"`((?:{names})-[a-z0-9-]+)`", text)) <= names_of_settings, text


def test_the_readme_s_picture_has_every_method_of_its_column_local_and_fedavg_among_them():
    shown = picture.accuracies(picture.COLUMN)
    assert {*picture.BASELINES} == {"Local", "FedAvg"} <= shown.keys()
    assert len(shown) == len(method_pages.measured())
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for name in (*picture.BASELINES, "FedPer", next(iter(shown))):
            assert f"{name} {shown[name][0]:.1f}" in text, (page, name)


def test_an_algorithm_is_short_and_tells_who_does_what():
    for method in methods().values():
        algorithm, _ = method_pages.algorithm_of(method)
        lines = algorithm.splitlines()
        assert 3 <= len(lines) <= 8 and all(len(line) <= 100 for line in lines), method.name
        assert re.search("^(round 1, )?client i|^training", algorithm, re.MULTILINE), method.name
        assert method.name in ("fedfomo", "factorized-fl-plus") or re.search("^predict: ", algorithm, re.MULTILINE), (
            method.name
        )
        text = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text(encoding="utf-8")
        assert text.count(algorithm) == 1 and "```math" not in text, method.name


def symbols(text: str) -> set[str]:
    """Return the letters of formulas: w of w_i, µ of µ_ic, ŵ; no words, no signs such as Σ or ²."""
    matches = re.findall(r"(?<![\w`\"'’.-])([^\W\d_][\u0302\u0304]?)(?:_\w+)?(?![\w'’\"-])", text)
    return {symbol for symbol in matches if symbol[0].isalpha() and symbol != "Σ"}


def test_a_symbol_is_in_the_table_or_explained_on_the_page():
    for method in methods().values():
        table = symbols(method_pages.symbol_table())
        algorithm, _ = method_pages.algorithm_of(method)
        text = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text(encoding="utf-8").replace(algorithm, "")
        defined = {s for s in symbols(algorithm) if re.search(rf"(?<!\w){s}(?:_\w+)?[^;←=]{{0,12}} [←=∝]", algorithm)}
        defined |= {s for s in symbols(algorithm) if re.search(rf"(?<!\w){s}(?:_\w+)?(?:: |, the )", algorithm)}
        defined |= set("SGω") if algorithm.startswith("as α") else set()
        assert symbols(algorithm) <= table | defined | symbols(text) | {"m"}, method.name  # m counts


def test_a_page_has_paper_settings_and_a_command_that_is_accepted():
    for method in methods().values():
        text = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text(encoding="utf-8")
        assert re.search(rf"^\[?{re.escape(method.paper)}(?:\]\(http\S+\))?; ", text, re.MULTILINE), method.name
        assert ("[BibTeX](references.bib)" in text) == ("## Differences" in text) == (method.name != "local"), (
            method.name
        )
        for key in keys(method.Settings, method.name):
            assert f"- `{key} = " in text or re.search(rf"`{key}`.*: as for \[", text)
        (command,) = re.findall(r"^fedpfl run -c (.*)$", text, re.MULTILINE)
        assert Config.parse(overrides([shlex.split(command)[0]])).method.name == method.name, method.name
