"""The notebooks of the documentation: their cells have outputs, and run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import outputs  # noqa: E402

SAYS = {
    "first-steps": ("personalised_accuracy", "image/png", "Linear(in_features=32", "report.html", "round 3/3"),
    "own-model-and-data": ("'fedper': 0.", "Linear(in_features=4, out_features=16", "model"),
    "compare": ("local", "fedper", "image/png", "compare.html"),
}


def texts(notebook):
    """Return all that the cells have printed and returned."""
    shown = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return "\n".join("".join(output.get("text", "")) or str(output.get("data", "")) for output in shown)


@pytest.mark.parametrize("path", outputs.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_outputs_of_a_run(path):
    content = path.read_text(encoding="utf-8")
    assert len(content) < 200_000
    notebook = json.loads(content)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [text for text in SAYS[path.stem] if text not in texts(notebook)]
    for cell in code:
        last = "".join(cell["source"]).splitlines()[-1]
        if re.match(r"[\w{(]", last) and " = " not in last and not last.startswith(("return", ")")):
            assert cell["outputs"], last


@pytest.mark.docs
@pytest.mark.parametrize("path", outputs.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    for package in ("nbclient", "ipykernel", "pandas"):
        pytest.importorskip(package)
    said = texts(outputs.executed_notebook(path, tmp_path))
    assert not [text for text in SAYS[path.stem] if text not in said], said
