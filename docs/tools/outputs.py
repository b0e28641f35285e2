"""What commands print, on the pages that show them.

A block of commands, or of Python that prints, is followed by one of

    <!-- output -->           and what it printed; ``<!-- output 4+10 -->`` keeps the first 4 and the last 10 lines,
                              ``<!-- output 9 from digits -->`` 9 lines from the first that has "digits",
                              ``<!-- output 9+2 from digits -->`` these and the last 2
    <!-- no output: why -->   where it cannot run here; ``<!-- no outputs: why -->`` on top holds for a whole page

``docs/records/outputs/SESSION.json`` has what the blocks printed in a recorded run. The pages of a session run in one
empty home, one block after the other; a block below "`FILE`:" is first written to that file. ``make docs`` puts the
records into the pages, and ``tests/docs/test_outputs.py`` fails where they differ.

    python docs/tools/outputs.py                   writes the pages from the records
    python docs/tools/outputs.py run tutorial …    runs these sessions and writes their records and pages
    python docs/tools/outputs.py notebooks         executes the notebooks and stores what their cells return
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from run_records import RECORDS, ROOT, environment, machine

from fedpfl.core.files import write_atomically

SESSIONS = {
    "readme": ["README.md"],
    "learn": [
        f"docs/learn/{name}.md"
        for name in (
            "one-model",
            "yardsticks",
            "one-round",
            "partition",
            "schedule",
            "aggregation",
            "own-method",
            "fair",
        )
    ],
    "tutorial": [f"docs/tutorial/{name}.md" for name in ("first-run", "own-data", "own-model", "compare")],
    **{
        name: [f"docs/how-to/{name}.md"]
        for name in (
            "analyses",
            "callbacks",
            "partition",
            "experiments",
            "flower",
            "forecasting",
            "language-models",
            "live",
            "models",
            "privacy",
            "python",
            "twelve-machines",
        )
    },
    **{name: [f"docs/devices/{name}.md"] for name in ("deployment", "device-models", "mqtt")},
}
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# Lines that are kept of a longer output, the first and the last ones: in a page, and in a record.
KEPT, RECORDED = (4, 11), (60, 60)
SECONDS = 500
_BLOCK = re.compile(
    r"(?P<file>^`(?P<name>[\w.-]+)`:\n\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```\n"
    r"(?P<shown>\n<!-- output ?(?P<kept>[^\n]*) -->\n(?:\n```text\n.*?^```\n)?)?",
    re.DOTALL | re.MULTILINE,
)
_STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_SEPARATOR = "--- next block ---"

Outputs = dict[str, dict[str, str]]


class Block(NamedTuple):
    """A block of a page: its language and code, the file that it is written to, and whether its output is shown."""

    language: str
    code: str
    file: str | None
    shown: bool


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that run or are files, from top to bottom."""
    for match in _BLOCK.finditer(text):
        if match["shown"] or match["name"]:
            yield Block(match["language"], match["code"], match["name"], bool(match["shown"]))


def filled(text: str, outputs: dict[str, str]) -> str:
    """Return a page with the recorded output below each block that shows one."""

    def put(match: re.Match[str]) -> str:
        if not match["shown"]:
            return match.group()
        if match["code"] not in outputs:
            raise ValueError(f"no output is recorded; run the page's session again:\n{match['code']}")
        block, comment = match.group()[: -len(match["shown"])], match["shown"].split("\n")[1]
        return f"{block}\n{comment}\n\n```text\n{kept(outputs[match['code']], match['kept'])}\n```\n"

    return _BLOCK.sub(put, text)


def kept(output: str, lines: str) -> str:
    """Return the lines of an output that a page keeps, as its comment names them."""
    if " from " not in lines:
        return shortened(output, *(map(int, lines.split("+")) if lines else KEPT))
    count, text = lines.split(" from ")
    output_lines = output.splitlines()
    first = next(number for number, line in enumerate(output_lines) if text in line)
    middle, _, last = count.partition("+")
    end, tail = first + int(middle), len(output_lines) - int(last or 0)
    return "\n".join(
        [*(["…"] if first else []), *output_lines[first:end], *(["…"] if end < tail else []), *output_lines[tail:]]
    )


def shortened(output: str, head: int, tail: int) -> str:
    """Return an output without the lines between its first and its last ones."""
    lines = output.splitlines()
    return "\n".join(lines if len(lines) <= head + tail + 1 else [*lines[:head], "…", *lines[len(lines) - tail :]])


def executed(session: str) -> Outputs:
    """Run the blocks of a session in an empty home; return by page what each block that is shown has printed.

    Raises
    ------
    subprocess.CalledProcessError
        If a block fails.
    """
    outputs: Outputs = {}
    with tempfile.TemporaryDirectory() as home:
        for page in SESSIONS[session]:
            blocks_of_page = list(blocks((ROOT / page).read_text(encoding="utf-8")))
            # The blocks of Python are one program, since later ones use the names of earlier ones.
            program = [block.code for block in blocks_of_page if block.shown and block.language == "python"]
            printed: list[str] = []
            outputs[page] = {}
            for block in blocks_of_page:
                if block.file:
                    (Path(home) / block.file).write_text(block.code, encoding="utf-8")
                if not block.shown:
                    continue
                if block.language == "python":
                    if not printed:
                        command = [sys.executable, "-c", f"print({_SEPARATOR!r})\n".join(program)]
                        printed = _run(command, home).split(_SEPARATOR)
                    output = printed.pop(0)
                else:
                    output = _run(["bash", "-ec", block.code], home)
                lines = [
                    line.rstrip()
                    for line in output.replace(home, "~").replace(sys.prefix, ".venv").strip("\n").splitlines()
                ]
                outputs[page][block.code] = shortened("\n".join(lines), *RECORDED)
    return outputs


def _run(command: list[str], home: str) -> str:
    """Return what a command prints to a terminal of 110 columns; its progress, on standard error, as lines."""
    terminal_of_pages = {"PYTHONUNBUFFERED": "1", "COLUMNS": "110", "TERM": "xterm"}
    master, slave = os.openpty()
    with (
        subprocess.Popen(
            command,
            cwd=home,
            env={**environment(home), **terminal_of_pages},
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.PIPE,
        ) as process,
        os.fdopen(master, "rb", buffering=0) as terminal,
    ):
        os.close(slave)
        assert process.stderr
        printed, open_streams = b"", [terminal, process.stderr]
        while open_streams:
            for stream in select.select(open_streams, [], [])[0]:
                try:
                    part = os.read(stream.fileno(), 65536)
                except OSError:  # How Linux ends a terminal whose other end is closed.
                    part = b""
                if not part:
                    open_streams.remove(stream)
                printed += part
    text = _STYLE.sub("", printed.decode()).replace("\r\n", "\n")
    if process.returncode:
        sys.stderr.write(text)
        raise subprocess.CalledProcessError(process.returncode, command)
    return text


def record(session: str) -> Path:
    """Return the file of a session's record."""
    return RECORDS / "outputs" / f"{session}.json"


def recorded(session: str) -> Outputs:
    """Return by page what the blocks of a session printed in the recorded run."""
    outputs: Outputs = json.loads(record(session).read_text(encoding="utf-8"))["outputs"]
    return outputs


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())
        print(f"wrote {path.relative_to(ROOT)}")


def executed_notebook(path: Path, home: Path) -> Any:
    """Return a notebook after all its cells have run in an empty home; the kernel is this Python."""
    import nbclient
    import nbformat

    kernel = home / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    notebook = nbformat.read(path, as_version=4)
    before = dict(os.environ)
    os.environ.update(environment(home), JUPYTER_PATH=str(home / "jupyter"))
    try:
        place = {"metadata": {"path": str(home)}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, resources=place, coalesce_streams=True).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return notebook


def _store(path: Path) -> None:
    """Execute a notebook and store what its cells print and return."""
    import nbformat

    with tempfile.TemporaryDirectory() as home:
        notebook = executed_notebook(path, Path(home))
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
        _write(path, nbformat.writes(notebook).replace(home, "~").rstrip("\n") + "\n")


def main(arguments: list[str]) -> None:
    """Run what the command line asks for, then write the pages."""
    verb, names = (arguments or [""])[0], arguments[1:] or list(SESSIONS)
    if verb == "notebooks":
        for path in NOTEBOOKS:
            _store(path)
        return
    for session in names:
        if verb == "run":
            made = {**machine(), "outputs": executed(session)}
            _write(record(session), json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        outputs = recorded(session)
        for page in SESSIONS[session]:
            _write(ROOT / page, filled((ROOT / page).read_text(encoding="utf-8"), outputs[page]))


if __name__ == "__main__":
    main(sys.argv[1:])
