"""What pages show of commands: each block has an output of a recorded run or a reason; a fresh run prints the same."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import outputs  # noqa: E402


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def leaves(menu: object) -> list[str]:
    """Return the pages of a part of the menu."""
    if isinstance(menu, str):
        return [f"docs/{menu}"]
    return [page for entry in (menu.values() if isinstance(menu, dict) else menu) for page in leaves(entry)]


PAGES = {page: session for session, pages in outputs.SESSIONS.items() for page in pages}
# Tutorial and how-to pages, by the site's menu; docs/tools/gallery.py has the outputs of the gallery's programs.
MENU = {name: entry for part in yaml.safe_load(text_of("mkdocs.yml"))["nav"] for name, entry in part.items()}
GUIDES = [
    page
    for page in leaves([MENU["Learn"], MENU["Tutorial"], MENU["How to"]])
    if (ROOT / page).is_file() and page != "docs/how-to/gallery.md"
]


def words_of(text: str) -> Counter[str]:
    """Return the words of a page without what differs from run to run: numbers, names of runs, rows of a profile."""
    lines = [line for line in text.splitlines() if not re.match(r"\s+\d", line)]
    return Counter(word for word in " ".join(lines).split() if re.fullmatch(r"[A-Za-z][a-z-]+[.,:]?", word))


def test_a_page_shows_what_its_record_has():
    for page in PAGES:
        text = text_of(page)
        recorded = outputs.recorded(PAGES[page])[page]
        assert {block.code for block in outputs.blocks(text) if block.shown} == set(recorded), f"{page}: run it again"
        assert outputs.filled(text, recorded) == text, f"{page}: python docs/tools/outputs.py writes it"


def test_each_block_of_commands_has_an_output_or_a_reason():
    for page in ["README.md", "deploy/ansible/README.md", *GUIDES]:
        text = text_of(page)
        after = re.findall(r"^ *```(?:sh\n.*?|python\n(?:(?!^```$).)*?^print\(.*?)^ *```$(.{0,17})", text, re.M | re.S)
        if not re.search(r"^<!-- no outputs: .+ -->$", text, re.M):
            assert all(re.match(r"\n\n<!-- (no )?output", rest) for rest in after), after


@pytest.mark.docs
@pytest.mark.parametrize("session", outputs.SESSIONS)
def test_a_fresh_run_prints_what_the_pages_show(session):
    for page, printed in outputs.executed(session).items():
        assert words_of(outputs.filled(text_of(page), printed)) == words_of(text_of(page)), page
