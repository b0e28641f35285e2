"""Private names of Flower's and Ray's: the package has them in one file, as the Flower that is installed has them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from fedpfl import flower_private
from fedpfl.flower import half_round
from fedpfl.version import untested

ROOT = Path(__file__).parents[1]
# Flower's documented interface (its reference of the Python API), in the modules' __all__.
PUBLIC = {
    "flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation",
}  # fmt: skip
# Variables in Flower's and Ray's documentation, or named by Flower's own messages (the last one).
VARIABLES = {
    "FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
    "FLWR_LOCAL_CONTROL_API_PORT", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED", "FLWR_DISABLE_UPDATE_CHECK",
}  # fmt: skip
_VARIABLE = re.compile(r"\b(?:FLWR|RAY)_\w+")
# What a file without it needs not be parsed for: that takes seconds for all files.
_THEIRS = re.compile(rf"\b(?:flwr|ray)\b|{_VARIABLE.pattern}")


def private(module, name=None):
    """Return the dotted name if it is private, or else None."""
    dotted = f"{module}.{name}" if name else module
    if any(part.startswith("_") for part in dotted.split(".")):
        return dotted
    if not dotted.startswith("flwr.") or dotted in PUBLIC:
        return None
    return None if module in PUBLIC and name in import_module(module).__all__ else dotted


def used(text):
    """Return the private names of Flower's and Ray's that a Python file uses: modules, their names and variables."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {private(alias.name) for alias in node.names if alias.name.split(".")[0] in ("flwr", "ray")}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.split(".")[0] in ("flwr", "ray"):
            names |= {private(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {private(node.value)} if re.fullmatch(r"(?:flwr|ray)(?:\.\w+)+", node.value) else set()
            names |= set(_VARIABLE.findall(node.value)) - VARIABLES
    return names - {None}


def test_the_package_has_private_names_in_one_file_only():
    paths = [path for folder in ("fedpfl", "experiments", "jetson") for path in (ROOT / folder).rglob("*.py")]
    paths += [ROOT / "client_app.py", ROOT / "server_app.py"]
    assert len(paths) > 150
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    names_of = {path: names for path, text in texts.items() if _THEIRS.search(text) and (names := used(text))}
    names = {flower_private.PULL_MODULE, flower_private.SUPEREXEC_MODULE, flower_private.SUPERNODE_MODULE}
    names |= {flower_private.CLIENT_APP_MODULE}
    names |= {flower_private.TASK_POLL_INTERVAL, *flower_private.CONCURRENCY}
    assert names_of == {"fedpfl/flower_private.py": names}
    assert used("from flwr.supercore.task_identity import TaskIdentity\nimport ray._private.node") == {
        "flwr.supercore.task_identity.TaskIdentity", "ray._private.node",
    }  # fmt: skip


def test_scripts_units_and_docs_set_no_other_variables():
    paths = [ROOT / "README.md", ROOT / "Makefile"]
    paths += [path for folder in ("deploy", "docs", "jetson") for path in (ROOT / folder).rglob("*") if path.is_file()]
    # What a command has printed sets nothing, and Ray names one of its variables there.
    texts = {path: path.read_text(errors="ignore") for path in paths if path.parent.name != "outputs"}
    variables = {name: path for path, text in texts.items() for name in _VARIABLE.findall(text)}
    assert variables.keys() - VARIABLES == {flower_private.TASK_POLL_INTERVAL, *flower_private.CONCURRENCY}


def test_the_private_names_are_those_of_the_flower_that_is_installed():
    folder = Path(import_module("flwr").__file__).parent
    sources = "".join(path.read_text() for path in folder.rglob("*.py"))
    codes = import_module("flwr.common.constant").ErrorCode
    assert codes.CLIENT_APP_RAISED_EXCEPTION == flower_private.CLIENT_APP_RAISED_EXCEPTION
    lost = {
        codes.MESSAGE_UNAVAILABLE,
        codes.REPLY_MESSAGE_UNAVAILABLE,
        codes.NODE_UNAVAILABLE,
        codes.CLIENT_APP_CRASHED,
    }
    assert lost == half_round.LOST
    assert f'"{flower_private.FLEET_API}pull-messages"' in sources
    assert f'get("{flower_private.HEALTH}"' in sources
    assert all(f'"{name}"' in sources for name in (flower_private.TASK_POLL_INTERVAL, *flower_private.CONCURRENCY))
    assert f'log(INFO, "{flower_private.TASK_ENDED} ' in sources
    assert f'log(ERROR, "{flower_private.RUN_REFUSED}: ' in sources
    assert f'"Run {{run_id}} {flower_private.UNKNOWN_RUN} while listing' in sources


SHORTENED = """
from importlib import import_module

from fedpfl import flower_private

module = import_module(flower_private.PULL_MODULE)
functions = [getattr(module, name) for name in flower_private.PULL_FUNCTIONS]
before = [dict(function.__kwdefaults__) for function in functions]
longest = [defaults["backoff_cap"] * defaults["max_tries_per_object"] for defaults in before]
assert longest == [flower_private.PAUSES["backoff_cap"] * flower_private.PAUSES["max_tries_per_object"]] * 2
flower_private.shorten_pauses()
for function, defaults in zip(functions, before, strict=True):
    assert function.__kwdefaults__ == {**defaults, **flower_private.PAUSES}
"""


STRETCHED = """
import time
from importlib import import_module

from fedpfl import flower_private

module = import_module(flower_private.SUPEREXEC_MODULE)
assert module.time is time
started, slept, now = [], [], [0.0]
time.monotonic, time.sleep = lambda: now[0], slept.append
setattr(module, flower_private.TASK_STARTED, lambda *arguments: started.append(arguments))
flower_private.stretch_task_polls()
for now[0] in (1.0, 50.0, 500.0):
    module.time.sleep(0.2)
getattr(module, flower_private.TASK_STARTED)("result", "task")
now[0] += 30.0
module.time.sleep(0.2)
module.time.sleep(2.0)
assert slept == [0.2, 0.5, 1.0, 0.3, 2.0], slept
assert started == [("result", "task")]
"""


def test_a_superexec_sleeps_in_the_one_place_that_is_stretched():
    loop = inspect.getsource(import_module(flower_private.SUPEREXEC_MODULE).run_superexec)
    assert re.findall(r"\btime\.\w+\(\w*\)", loop) == ["time.sleep(task_poll_interval)"]
    assert f"{flower_private.TASK_STARTED}(launch_result, combined_res.task)" in loop


POLLED = """
import time
from importlib import import_module

from fedpfl import flower_private

module = import_module(flower_private.SUPERNODE_MODULE)
assert module.time is time
slept, now = [], [100.0]

def sleep(seconds):
    slept.append(round(seconds, 3))
    now[0] += seconds

time.monotonic, time.sleep = lambda: now[0], sleep
flower_private.shorten_message_polls()
for took, longest in ((0.001, 3), (0.02, 3), (0.9, 3), (0.01, 0.5), (0.01, 0.5), (0.0, 3), (9.0, 3), (0.0, 3)):
    now[0] += took
    module.time.sleep(longest)
# Soon after the reply it looks often, whatever a look takes; at last after a long look, and 11.8 s after the reply.
assert slept == [0.1, 0.1, 0.336, 0.1, 0.1, 0.1, 2.73, 0.591], slept
"""


INSTALLED = """
import os, tempfile
from importlib import import_module
from pathlib import Path

from fedpfl import flower_private

module = import_module(flower_private.CLIENT_APP_MODULE)
assert module.install_from_fab is import_module("flwr.cli.install").install_from_fab
with tempfile.TemporaryDirectory() as folder:
    calls = []

    def install(content, skip_prompt=False):
        place = Path(os.environ["FLWR_HOME"], str(len(calls)))
        place.mkdir(parents=True)
        calls.append((content, skip_prompt))
        return place

    setattr(module, flower_private.INSTALL, install)
    flower_private.install_apps_once(Path(folder, "notes"))
    def places(*contents):
        return [module.install_from_fab(content, skip_prompt=True).name for content in contents]
    os.environ["FLWR_HOME"] = folder + "/home"
    assert places(b"one", b"one", b"two", b"one") == ["0", "0", "1", "0"]
    os.environ["FLWR_HOME"] = folder + "/another"
    assert places(b"one", b"two", b"one") == ["2", "3", "2"]
    Path(folder, "another", "2").rmdir()
    assert places(b"two", b"one", b"one") == ["3", "4", "4"]
    assert calls == [(content, True) for content in (b"one", b"two", b"one", b"two", b"one")]
"""


def test_pauses_are_short_polls_follow_what_happens_and_apps_are_installed_once():
    # In a process where nothing has changed them yet.
    programs = [sys.executable, "-c", "import sys\nfor code in sys.argv[1:]: exec(code, {})"]
    done = subprocess.run(
        [*programs, SHORTENED, STRETCHED, POLLED, INSTALLED], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_supernode_sleeps_in_the_three_places_that_are_shortened():
    module = inspect.getsource(import_module(flower_private.SUPERNODE_MODULE))
    assert re.findall(r"\btime\.\w+\([\w.]*\)", module) == ["time.sleep(3)", "time.sleep(0.5)", "time.sleep(0.5)"]


def test_where_flower_has_other_names_it_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(flower_private, "PULL_FUNCTIONS", ("other",))
    flower_private.shorten_pauses()
    monkeypatch.setattr(flower_private, "PULL_MODULE", "flwr.other")
    flower_private.shorten_pauses()
    before = import_module(flower_private.SUPEREXEC_MODULE).time
    monkeypatch.setattr(flower_private, "TASK_STARTED", "other")
    flower_private.stretch_task_polls()
    assert import_module(flower_private.SUPEREXEC_MODULE).time is before
    monkeypatch.setattr(flower_private, "SUPEREXEC_MODULE", "flwr.other")
    flower_private.stretch_task_polls()
    monkeypatch.setattr(flower_private, "SUPERNODE_MODULE", "flwr.other")
    flower_private.shorten_message_polls()
    monkeypatch.setattr(flower_private, "CLIENT_APP_MODULE", "flwr.other")
    flower_private.install_apps_once(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_tried_with_the_newest_flower_is_there():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (paths,) = re.findall(r"^FLOWER_TESTS := (.*)$", makefile, re.MULTILINE)
    assert [path for path in paths.split() if not (ROOT / path).exists()] == []


def test_a_bench_names_the_versions_that_it_was_tested_with():
    assert untested("1.41.0") == untested("1.42.7") == ""
    for other in ("1.40.9", "1.43.0", "2.0"):
        assert f"Flower {other}: " in untested(other)
        assert untested(other).endswith("were tested with Flower from 1.41 to below 1.43")
