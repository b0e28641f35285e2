"""The notebooks of the documentation, executed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
SAYS = {
    "own-model-and-data": ("'fedper': 0.", "Linear(in_features=4, out_features=16", "model"),
    "compare": ("local", "fedper", "image/png", "compare.html"),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "Python 3", "language": "python"}}')
    for variable, value in {"HOME": tmp_path, "JUPYTER_PATH": tmp_path / "jupyter", "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "\n".join(output.get("text", "") or str(output.get("data", "")) for output in outputs)
    assert not [words for words in SAYS[name] if words not in said], said


def test_every_notebook_is_executed():
    found = {path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert found == set(SAYS)
