"""The gallery: its page is made of its scripts and of what they printed, and they run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fedpfl.methods import methods

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import gallery  # noqa: E402


def test_the_page_is_made_of_scripts_and_record():
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(), "python docs/tools/gallery.py writes it"


def test_each_script_is_short_and_has_a_small_picture():
    assert {path.stem for path in gallery.FOLDER.glob("*.py")} == set(gallery.ORDER)
    for name in gallery.ORDER:
        assert len((gallery.FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 50
        assert (gallery.FOLDER / f"{name}.svg").stat().st_size < 60_000


def test_a_script_that_compares_methods_has_both_baselines():
    several = 0
    for name in gallery.ORDER:
        text = (gallery.FOLDER / f"{name}.py").read_text(encoding="utf-8")
        shown = {method for method in methods() if f'"{method}"' in text or f" {method} " in text}
        assert len(shown) < 2 or {"local", "fedavg"} <= shown, name
        several += len(shown) > 1
    assert several >= 2


@pytest.mark.docs
@pytest.mark.parametrize("name", gallery.ORDER)
def test_a_script_prints_what_the_page_shows(name, tmp_path):
    shown = json.loads(gallery.RECORD.read_text(encoding="utf-8"))["values"][name]["output"]
    printed = gallery.execute(name, tmp_path)
    assert (tmp_path / f"{name}.svg").is_file()
    # Numbers depend on the processor, and names of runs on the time.
    word = re.compile(r"[^\W\d]{2,}")
    assert word.findall(re.sub(r"<Run \S+", "", printed)) == word.findall(re.sub(r"<Run \S+", "", shown))
