"""A notebook that is interrupted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Execute a notebook in an empty folder with a home of its own; the kernel is this Python."""
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "Python 3", "language": "python"}}')
    for name, value in {"HOME": tmp_path, "JUPYTER_PATH": tmp_path / "jupyter", "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def executed(notebook):
        client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
        return notebook

    return executed


def texts(notebook):
    """Return all that the cells have said and shown."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text", "") or str(output.get("data", "")) for output in outputs)


def test_an_interrupted_cell_leaves_no_process(execute):
    code = """
        import _thread, multiprocessing, fedpfl, fedpfl.launch.progress as progress

        shown = progress.LineDisplay.round
        def interrupt(self, line):
            shown(self, line)
            _thread.interrupt_main()
        progress.LineDisplay.round = interrupt
        try:
            fedpfl.run(method="fedavg", model="mlp", num_clients=2, local_epochs=1, num_server_rounds=50, workers=2)
        except KeyboardInterrupt as error:
            print(error, multiprocessing.active_children())
    """
    lines = [line.removeprefix("        ") for line in code.splitlines()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("\n".join(lines))])
    assert re.search(r"the run was interrupted; resume it: fedpfl\.run\(resume='.*'\) \[\]", texts(execute(notebook)))
