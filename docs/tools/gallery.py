"""Write the gallery from its scripts and the record of their runs: ``python docs/tools/gallery.py``.

    python docs/tools/gallery.py run --commit HASH [NAME …]

runs all scripts, or some, and records what they print, their time and their pictures: some minutes.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import run_records

from fedpfl.core.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "gallery"
RECORD = run_records.RECORDS / "figures" / "gallery.json"
PAGE = ROOT / "docs" / "how-to" / "gallery.md"
ORDER = (
    "table", "series", "images", "segmentation", "own_method", "different_models", "lora", "onnx_export", "privacy",
    "robust", "choice", "slurm",
)  # fmt: skip
START = """\
# Gallery

Written by `docs/tools/gallery.py` from the programs in `docs/gallery`. They run as they are, on data that need no
download, with the [extra](install.md#extras) `notebook`. Times, imports included, are of one core of an {processor}.
"""


def execute(name: str, folder: Path) -> str:
    """Run a script in a folder, which is also its home, and return what it prints."""
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        cwd=folder,
        env=run_records.environment(folder),
        capture_output=True,
        text=True,
        timeout=800,  # a busy machine takes five minutes
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    return done.stdout


def record(names: Sequence[str], commit: str) -> None:
    """Run scripts, and record output, seconds and pictures."""
    values: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["values"] if RECORD.is_file() else {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            before = time.perf_counter()
            output = execute(name, Path(folder))
            values[name] = {"output": output, "seconds": round(time.perf_counter() - before, 1), "commit": commit}
            shutil.copy(Path(folder) / f"{name}.svg", FOLDER)
        print(name, values[name])
    command = "python docs/tools/gallery.py run --commit HASH"
    run_records.write("figures/gallery", {"command": command, "values": values, **run_records.machine()})


def page() -> str:
    """Return the page: each script with its text, picture, output and time."""
    records = json.loads(RECORD.read_text(encoding="utf-8"))
    parts = [START.format(processor=records["processor"])]
    for name in ORDER:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        title, _, about = (ast.get_docstring(ast.parse(source)) or "").partition(".\n\n")
        code = source.split('"""\n', 1)[1].strip()
        ran = records["values"][name]
        seconds = math.ceil(ran["seconds"])
        parts += [
            f"## {title}\n", f"{about}\n", f"```python\n{code}\n```\n", f"```text\n{ran['output'].rstrip()}\n```\n",
            f"![{title}](../gallery/{name}.svg)\n",
            f"[`{name}.py`](../gallery/{name}.py): {seconds} s\n",
        ]  # fmt: skip
    return "\n".join(parts)


def main() -> None:
    """Write the page, or run scripts first."""
    parser = argparse.ArgumentParser(prog="gallery.py", description=__doc__.partition("\n")[0])
    run = parser.add_subparsers(dest="verb").add_parser("run", help="run scripts and record what they do")
    run.add_argument("--commit", required=True, help="commit of the code that runs")
    run.add_argument("names", nargs="*", default=ORDER, help="scripts; without any, all")
    options = parser.parse_args()
    if options.verb == "run":
        record(options.names, options.commit)
    write_atomically(PAGE, page().encode())


if __name__ == "__main__":
    main()
