"""The English of pages, settings, help and errors: words to avoid, each with a better one, and the spelling."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")})
# A word → what to write instead. Only words that are never right here.
AVOID = {
    r"(?:by )?more than chance": "statistically significant, significantly",
    r"(?:cannot be|not) told apart": "not significantly different",
    r"false clients?": "malicious or Byzantine client",
    r"class made of": "subclass of",
    r"anew": "again, or a new …",
    r"at hand": "available",
    r"bench(?= \w)|(?<=\w )bench": "testbed",
    r"as \w+, where": "like …, but",
    r"be(?:ing)? had|is had": "be used, be available",
    r"beside": "next to, in addition to, with",
    r"by turns": "alternately",
    r"fewest (?:that|of)": "the minimum number of",
    r"for ever": "indefinitely",
    r"of their own": "their own, separate",
    r"of yours": "your own",
    r"(?:is|are|was|were) (?:above|below|level with) (?:it|local|Ditto|Fed\w+)": "outperforms, trails, matches",
    r"persons": "clients, users, people",
    r"plays? (?:the|all|its) clients?": "runs the clients",
    r"samples for validation": "validation samples",
    r"says (?:so|what|who|which|whether|why|how)": "names, lists, shows, explains",
    r"(?<=[^,] )some \d+": "about",
    r"so (?:is|are) that": "in the same way, …",
    r"stands? beside": "is next to",
    r"(?:that|which) (?:it|they) (?:got|was sent|were sent)": "received",
    r"to this come": "in addition there are",
    r"used to be|until this was": "(history belongs into the changelog)",
}


def complaints(text: str) -> list[str]:
    """Return each word to avoid that the text has outside code, and what to write instead."""
    flat = " ".join(re.sub(r"``[^`]*``|`[^`]*`", "", text).split())
    return [
        f"{match.group()!r} → {better}: … {flat[max(0, match.start() - 40) : match.end() + 20]} …"
        for word, better in AVOID.items()
        for match in re.finditer(rf"(?<![\w-]){word}(?![\w-])", flat, re.IGNORECASE)
    ]


def test_the_words_of_a_page():
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        # Links to headings, and what others wrote, are as they are.
        assert not complaints(re.sub(r"\]\([^)]*\)|“[^”]*”|\"[^\"\n]*\"", "", text))


def test_the_words_of_settings_help_errors_and_remarks():
    for path in sorted((ROOT / "fedpfl").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Docstrings of commands are their help.
        help_is_docstring = path.parent.name == "cli"
        docstrings = set() if help_is_docstring else {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                assert not complaints(node.value), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_the_spelling():
    pytest.importorskip("codespell_lib", reason="the extra dev has it")
    places = [*map(str, PAGES), "fedpfl", "configs", "experiments", "benchmarks", "jetson"]
    skip = ["--skip", "*.js,*.css,*.svg,*.txt,*.json", "--ignore-words-list", "shedule,te"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *skip, *places], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert not done.stdout and not done.stderr
