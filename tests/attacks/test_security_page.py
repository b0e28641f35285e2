"""The page on security names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")


def test_each_attack_on_the_page_has_a_test_that_exists():
    rows = PAGE.partition("<!-- attacks -->")[2].strip().partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        match = re.search(r"`(tests/[\w/]+\.py)(?:::(\w+))?` \|$", row)
        assert match, row
        path, function = match.groups()
        source = (ROOT / path).read_text(encoding="utf-8")
        assert function is None or f"def {function}(" in source, row
