"""docs/how-to/adding-a-method.md, followed to the letter in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Where the page says that the name of the method is to be written, and the name before it there.
LISTS = {
    "tests/setup/test_robust_rule.py": '"fedrolex"',
    "tests/api/test_every_method.py": '"fedreg"',
    "tests/api/test_own_models.py": '"floco"',
}
FILE = re.compile(r"^`((?:fedpfl|tests)/\S+\.py)`:\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def project(tmp_path):
    for folder in ("docs", "experiments", "fedpfl", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.docs
def test_the_worked_example_works_as_written(project):
    page = (ROOT / "docs" / "how-to" / "adding-a-method.md").read_text(encoding="utf-8")
    files = dict(FILE.findall(page))
    assert [name.rsplit("/", 1)[0] for name in files] == ["fedpfl/methods", "tests/methods"]
    for name, code in files.items():
        (project / name).write_text(code, encoding="utf-8")

    settings = project / "fedpfl" / "methods" / "settings.py"
    text = settings.read_text(encoding="utf-8")
    (entry,) = re.findall(r"the entry `(.*?)` in `files=\[\]`", page)
    assert text.count("files=[]") == 1
    settings.write_text(text.replace("files=[]", f"files=[{entry}]"), encoding="utf-8")

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(project)}
        done = subprocess.run(
            [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (entry,) = re.findall(r"^  ```toml\n(.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    with (project / "docs" / "tools" / "methods.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{dedent(entry)}")
    for path, before in LISTS.items():
        text = (project / path).read_text(encoding="utf-8")
        assert text.count(f"{before},") == 1, path
        more = before[0] + "fedrecon" + before[-1]
        (project / path).write_text(text.replace(before, f"{before}, {more}", 1), encoding="utf-8")
    run("docs/tools/method_pages.py")
    assert "\nfedrecon-head-epochs = 5\n" in (project / "pyproject.toml").read_text(encoding="utf-8")
    for file in ("robustness", "models"):
        assert "`fedrecon`" in (project / "docs" / "how-to" / f"{file}.md").read_text(encoding="utf-8")
    explained = (project / "docs" / "methods" / "fedrecon.md").read_text(encoding="utf-8")
    assert "- `fedrecon-head-epochs = 5`" in explained
    assert "computation not measured" in explained and "traffic not measured" not in explained
    # Of the five tests of a recorded run three are enough here: resume and order are the engine's and cost the most.
    chosen = ("-m", "", "-k", "fedrecon and not resumed and not order")
    tests = run("-m", "pytest", "tests/methods/test_fedrecon.py", "tests/engine/test_recorded_runs.py", *chosen)
    assert "5 passed" in tests
    lists = ("tests/docs/test_method_pages.py", "tests/docs/test_facts.py", "tests/setup/test_robust_rule.py")
    run("-m", "pytest", "-m", "not docs", *lists, "-k", "method or picture or means or symbol or algorithm or number")
    each = (
        "tests/api",
        "tests/training/test_masks.py",
        "tests/training/test_next_token.py",
        "tests/engine/test_test_at.py",
    )
    run("-m", "pytest", "-m", "", "-k", "fedrecon", *each)
    run("-m", "ruff", "check", *files)
    run("-m", "ruff", "format", "--check", *files)
