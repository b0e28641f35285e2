"""The page that sets the papers beside the code: what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from fedpfl.methods import methods
from fedpfl.setup.all_settings import all_settings

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests" / "papers" / "equations.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| paper ")
]


def test_files_and_tests_of_a_row_are_there() -> None:
    for row in ROWS:
        _, says, file, test, differs = row
        assert says and differs, row
        # Of the package, or next to a paper's tables.
        assert any((folder / file.strip("`")).is_file() for folder in (ROOT / "fedpfl", ROOT)), row
        path, _, name = test.strip("`").partition("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {name}\(" if name else r"^ *def test_", text, re.MULTILINE)


def test_settings_of_the_page_on_papers_exist() -> None:
    text = (ROOT / "tests" / "papers" / "equations.md").read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{'|'.join(methods())})-[a-z0-9-]+)(?: = [^`]*)?`", text))
    assert named - {*methods(), *(path.stem for path in ROOT.glob("experiments/*/*.toml"))} <= all_settings().keys()


def test_every_equation_of_the_four_papers_has_a_row() -> None:
    page = (ROOT / "tests" / "papers" / "equations.md").read_text(encoding="utf-8")
    for section, equations in zip(page.split("\n## ")[1:], (7, 6, 7, 7), strict=True):
        named: set[int] = set()
        for first, last in re.findall(r"^\| eq\. (\d+)(?:(?:, | to )(\d+))? \|", section, re.MULTILINE):
            named |= set(range(int(first), int(last or first) + 1))
        assert named == set(range(1, equations + 1)), section.splitlines()[0]
