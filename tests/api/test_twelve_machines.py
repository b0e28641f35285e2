"""Twelve machines from their CSV files to a decision and to ONNX: docs/how-to/twelve-machines.md."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess, call_fedpfl, call_program

import fedpfl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import outputs  # noqa: E402

# torch.onnx takes seconds to import: the tests that need it are in one process.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.xdist_group("onnx")]

BLOCKS = [*outputs.blocks((ROOT / "docs/how-to/twelve-machines.md").read_text(encoding="utf-8"))]
# As the page's commands, with fewer rounds, epochs, batches and seeds; in this process.
SMALLER = {
    "compare": ["--seeds", "1", "-c", "num-server-rounds=2 local-epochs=1 batch-size=100", "--format", "csv"],
    "run": ["-c", "num-server-rounds=2 local-epochs=1 batch-size=100", "--workers", "0"],
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Run the page's commands; return what each line has printed, by its first words."""
    pytest.importorskip("onnxruntime")
    home, said_by_line = tmp_path_factory.mktemp("machines"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("HOME", str(home))
        patch.setattr("fedpfl.study.execution.Process", InProcess)
        for block in BLOCKS:
            if block.file:
                (home / block.file).write_text(block.code, encoding="utf-8")
            for line in block.code.splitlines() if block.shown else ():
                said_by_line[line] = run(line)
    return home, said_by_line


def run(line):
    """Return what a line of the page prints."""
    command_line = shlex.split(line.replace("round-000010", "round-000002"))
    if command_line[0] == "fedpfl":
        done = call_fedpfl(*command_line[1:], *SMALLER.get(command_line[1], ()))
        assert done.exit_code == 0, done.output
        return done.stdout
    if command_line[0] == "python":
        printed, ended = call_program(Path(command_line[1]), *command_line[2:])
        assert not ended
        return printed
    command = " ".join(word if "*" in word or "~" in word else shlex.quote(word) for word in command_line)
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_comparison_is_by_auroc_and_runs_again_from_its_file(printed):
    home, said_by_line = printed
    (lines,) = (text for line, text in said_by_line.items() if line.startswith("fedpfl compare"))
    for method in ("local", "fedavg", "fedper", "ditto"):
        assert f"\n{method}," in lines
    assert "auroc" in lines and "significant" in lines
    (file,) = home.glob(".fedpfl/experiments/tables/sweeps/*/comparison.toml")
    assert 'choose-by = "auroc"' in file.read_text()


def test_the_confusion_matrices_name_the_machines(printed):
    _, said_by_line = printed
    text = said_by_line["fedpfl analyse confusion july"]
    assert all(f"machine-{number:02}" in text for number in range(1, 13))


def test_the_program_on_the_machine_says_what_the_model_says(printed, monkeypatch):
    home, said_by_line = printed
    monkeypatch.setenv("HOME", str(home))
    (said,) = (text for line, text in said_by_line.items() if line.startswith("python predict.py"))
    model = fedpfl.load_model(next(home.glob(".fedpfl/state/july-*/client-00002")))
    rows = np.genfromtxt(home / "august/machine-03.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    x = np.empty((len(rows), 7), np.float32)
    for place, name in enumerate(model.about["feature-names"]):
        column, _, word = name.partition("=")
        x[:, place] = rows[column] == word if word else rows[column]
    x = np.where(np.isnan(x), np.array(model.about["mean"], np.float32), x)
    faults = model.predict(x).argmax(1) == 1
    right = int((faults & (rows["fault"] == 1)).sum())
    assert said == f"{len(rows)} rows, {faults.sum()} called a fault, {right} of {(rows['fault'] == 1).sum()}\n"
