"""The architecture, as a test: who may import whom."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fedpfl.core.code_hash import DEVICE_PACKAGES
from fedpfl.methods import Method

PACKAGE = Path(__file__).parents[1] / "fedpfl"

# Lowest first; a package may import what stands before it, and files of its own.
LAYERS = [
    ["core", "flower_private", "version"],
    ["data", "layers", "models", "bench/mqtt"],
    ["rules", "training"],
    ["methods"],
    ["setup"],
    ["client"],
    ["bench/device"],
    ["results"],
    ["engine"],
    ["flower"],
    ["strategies"],
    ["bench"],
    ["launch"],
    ["study/analysis"],
    ["study"],
    ["study/report"],
    ["study/live"],
    ["api"],
    ["cli"],
    ["fedpfl"],  # the package's own __init__.py, which hands on names
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def module_of(path):
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module):
    """Return the folder or file of fedpfl that a module belongs to: at its top, or one of those listed in another."""
    first, *rest = module.split(".")[1:] or [module]
    return inner if (inner := "/".join([first, *rest[:1]])) in RANK else first


@cache
def imports(module):
    """Return the modules that a module imports anywhere, in functions and for type checkers too."""
    path, imported = MODULES[module], set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            imported |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return imported


def test_dependencies_point_downwards():
    upward, flower = [], []
    for module in MODULES:
        part = part_of(module)
        for other in imports(module):
            ours = other.split(".")[0] == PACKAGE.name
            if ours and part_of(other) != part and RANK[part_of(other)] >= RANK[part]:
                upward.append(f"{module} imports {other}")
            if part in {*DEVICE_PACKAGES, "bench/mqtt", "results", "engine"} and other.split(".")[0] == "flwr":
                flower.append(f"{module} imports {other}")
    assert not upward and not flower


def test_no_package_defines_a_name_that_one_of_its_modules_takes_away():
    # Importing a module sets its name in the package, over a function of that name.
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            beside = {other.rpartition(".")[2] for other in MODULES if other.rpartition(".")[0] == module}
            tree = ast.parse(path.read_text(encoding="utf-8"))
            defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
            assert not beside & defined, module


def test_no_object_of_the_package_is_named_as_text():
    """An import is an import; tables of names (methods, data sets, models) have the module that a user's name is in."""
    names = {
        module: re.findall(r"[\"'](fedpfl\.[\w.]+:\w+)[\"']", path.read_text()) for module, path in MODULES.items()
    }
    named = {module: texts for module, texts in names.items() if texts}
    assert not named, named


PLAIN = """
import sys
from fedpfl.cli import main
from fedpfl.engine.rounds import RoundLoop

def run_round(*given, real=RoundLoop.run_round):
    sys.setprofile(lambda frame, event, _: event == "call" and passed.add(frame.f_code))
    try:
        return real(*given)
    finally:
        sys.setprofile(None)

passed, RoundLoop.run_round = set(), run_round
sys.argv = ["fedpfl", "run", "-q", "--workers", "0", *(word for pair in sys.argv[1:] for word in ("-c", pair))]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] == "fedpfl"), file=sys.stderr)
    print(*{code.co_filename for code in passed if code.co_name != "<module>"}, file=sys.stderr)
"""


def plain_run(folder):
    """Return the modules that a run of FedAvg with its defaults imports, and those whose functions its round passes."""
    places = [f'{key}="{folder}"' for key in ("output-dir", "state-dir")]
    arguments = ['method="fedavg"', "num-server-rounds=1", "local-epochs=1", *places]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, files = ({*line.split()} for line in done.stderr.split("\n")[-3:-1])
    return sorted(loaded & MODULES.keys()), [module for module, path in MODULES.items() if str(path) in files]


def test_the_guide_to_a_round_names_files_that_exist():
    text = (PACKAGE.parent / "docs" / "contributing" / "read-the-code.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`fedpfl/([\w/]+\.py)`", text)}
    assert len(named) > 10 and not [path for path in named if not (PACKAGE / path).is_file()]


def test_a_plain_run_imports_little(tmp_path):
    loaded, passed = plain_run(tmp_path)
    assert "fedpfl.methods.fedavg" in loaded and "fedpfl.methods.fedfac" not in loaded
    assert not [module for module in loaded if module.startswith("fedpfl.study")]
    assert "fedpfl.rules.mean" in passed


def test_no_module_imports_itself_through_others():
    graph = {module: {*imports(module)} & MODULES.keys() - {module} for module in MODULES}

    def reached(module):
        modules, new = set(), {module}
        while new:
            modules |= new
            new = set().union(*(graph[other] for other in new)) - modules
        return modules

    circles = {module: sorted(other for other in graph[module] if module in reached(other)) for module in MODULES}
    assert not {module: others for module, others in circles.items() if others}


def test_what_runs_on_devices_uses_nothing_newer_than_python_3_8():
    pytest.importorskip("vermin")
    paths = [str(path) for module, path in MODULES.items() if part_of(module) in DEVICE_PACKAGES]
    assert len(paths) > 60
    # Syntax, modules, functions and their arguments.
    code = "from vermin.main import main; main()"
    options = ["-t=3.8-", "--violations", "--no-tips", "--processes=1"]
    done = subprocess.run([sys.executable, "-c", code, *options, *paths], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_methods_need_nothing_of_data_and_the_training_core_nothing_of_flower():
    code = """
import sys
from fedpfl.methods import methods
assert methods() and "fedpfl.data" not in sys.modules
import fedpfl.client.engine, fedpfl.bench.device.worker
print(*sys.modules)
import fedpfl.flower.fit
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    loaded, of_app = ({*line.split()} for line in done.stdout.splitlines())
    assert not {name.partition(".")[0] for name in loaded} & {"flwr", "ray"}
    # What it loads is what a worker compares with the app's.
    parts = {part_of(module) for module in loaded & MODULES.keys()}
    assert parts <= {*DEVICE_PACKAGES, "version", "fedpfl", "bench"}
    # Nor does a ClientApp of the user's load the server's half.
    assert not {part_of(module) for module in of_app & MODULES.keys()} & {"engine", "results", "study"}


WITHOUT_TORCH = (
    "import fedpfl.cli; from fedpfl.cli import doctor, up, watch, keys",
    "import fedpfl.cli.bridge; from fedpfl.bench.mqtt import device_side, http_server, server_side, events",
    "import fedpfl.study.live.page_server",
    "import fedpfl.bench.superlink, fedpfl.bench.testbed",
    "from fedpfl.bench.forkserver import load; load('installed'); import fedpfl.bench.flower_command",
    "import fedpfl.flower.client_app, fedpfl.flower.server_app",
)


def test_what_waits_or_only_passes_things_on_loads_no_torch():
    # Which takes seconds, and half a gigabyte of a board's memory. One process: none of them may load it.
    code = "\n".join(f"{line}; assert 'torch' not in sys.modules" for line in WITHOUT_TORCH)
    subprocess.run([sys.executable, "-c", f"import sys\n{code}"], check=True)


def test_the_folders_of_tests_are_those_of_the_package():
    """Except those that are about no folder of the package alone."""
    tests = Path(__file__).parent
    others = {"attacks", "deployment", "docs", "experiments", "jetson", "papers"}
    for folder in {path.relative_to(tests).parent for path in tests.rglob("test_*.py")}:
        assert (PACKAGE / folder).is_dir() or folder.parts[0] in others, folder


def test_no_method_s_name_decides_anything_outside_its_file():
    for module, path in MODULES.items():
        if part_of(module) != "methods":
            assert "method ==" not in path.read_text(), path


def test_the_device_s_packages_are_listed_alike_everywhere():
    root = PACKAGE.parent
    assert f'"fedpfl/{{{",".join(DEVICE_PACKAGES)}}}/**/*.py" = "py38"' in (root / "pyproject.toml").read_text()
    *first, last = (f"`{name}`" for name in DEVICE_PACKAGES)
    text = " ".join((root / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8").split())
    assert f"A worker on a device needs only the packages {', '.join(first)} and {last};" in text


def test_the_page_names_every_hook_of_a_method_and_they_are_few():
    text = (PACKAGE.parent / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
    named = {word.partition("(")[0] for word in re.findall(r"`([^`]+)`", text.partition("A rule can also")[0])}
    hooks = {name for name in {**vars(Method), **Method.__annotations__} if not name.startswith("_")}
    assert hooks <= named, hooks - named
