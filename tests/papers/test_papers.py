"""Every file of configs/ and every column of experiments/ at the papers' own size: `make test-papers`."""

from __future__ import annotations

import os
import time

import papers
import pytest
from combinations import Combination, combinations

WHICH = os.environ.get("PAPERS", "").split()
CELLS = bool(os.environ.get("PAPERS_CELLS"))
HOURS = float(os.environ.get("PAPERS_HOURS") or "inf")
PRECISION = os.environ.get("PAPERS_PRECISION") or papers.PRECISIONS[0]
BEGUN = time.monotonic()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each combination; where they are not asked for, their hundreds of settings are not even read."""
    if PRECISION not in papers.PRECISIONS:
        raise pytest.UsageError(f"PAPERS_PRECISION = {PRECISION!r}: use {' or '.join(papers.PRECISIONS)}")
    asked = "papers" in metafunc.config.option.markexpr.replace("not papers", "")
    found = papers.wanted(combinations(), WHICH, CELLS, again=True) if asked else []
    metafunc.parametrize("one", found, ids=lambda one: one.key)


@pytest.mark.papers
def test_the_papers_own_size(one: Combination) -> None:
    record = papers.records.read().get(one.key)
    if record is None and time.monotonic() - BEGUN > HOURS * 3600:
        pytest.skip("no time left (PAPERS_HOURS)")
    complaint = papers.complaint(one, record) if record else papers.carry_out(one, PRECISION)
    if complaint:
        pytest.fail(complaint, pytrace=False)
