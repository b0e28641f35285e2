"""The architecture, as a test: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fedpfl.core.device import DEVICE_PACKAGES

PACKAGE = Path(__file__).parents[1] / "fedpfl"

# Lowest first; a package may import what stands before it, and files of its own.
LAYERS = [
    ["core", "flower_private"],
    ["data", "layers", "models", "mqtt"],
    ["rules", "training"],
    ["methods"],
    ["setup"],
    ["client"],
    ["messages", "results"],
    ["transports"],
    ["strategies"],
    ["server"],
    ["client_app", "server_app"],
    ["launch"],
    ["analysis"],
    ["experiments"],
    ["report"],
    ["api"],
    ["cli"],
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Yield (package part or foreign module, whether it is imported when the file is) of a file's imports."""
    tree = ast.parse(path.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0], False
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            yield from ((name, True) for name in names if name in RANK)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_dependencies_point_downwards(path):
    part = part_of(path)
    if part == "__init__":
        return
    for name, ours in imports(path):
        if ours and name != part:
            assert RANK[name] < RANK[part], f"{part} imports {name}"
        if not ours and part in {*DEVICE_PACKAGES, "mqtt"}:
            assert name != "flwr", f"{part} imports flwr"


def test_what_runs_on_devices_uses_nothing_newer_than_python_3_8():
    pytest.importorskip("vermin")
    paths = [str(path) for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) in DEVICE_PACKAGES]
    assert len(paths) > 60
    # Syntax, modules, functions and their arguments.
    code = "from vermin.main import main; main()"
    options = ["-t=3.8-", "--violations", "--no-tips", "--processes=1"]
    done = subprocess.run([sys.executable, "-c", code, *options, *paths], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_training_core_loads_without_flower():
    found = "{m.split('.')[0] for m in sys.modules}"
    # And what it loads is what a worker compares with the app's.
    parts = "{m.split('.')[1] for m in sys.modules if m.startswith('fedpfl.')}"
    checks = f"assert not {found} & {{'flwr', 'ray'}}; assert {parts} == {set(DEVICE_PACKAGES)}"
    code = f"import sys, fedpfl.client.engine, fedpfl.methods.feddecomp, fedpfl.client.worker; {checks}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_flower_loads_the_apps_without_torch():
    code = "import sys, fedpfl.client_app, fedpfl.server_app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_method_s_name_decides_anything_outside_its_file():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if part_of(path) != "methods":
            assert "method ==" not in text, path


def imported_modules(path):
    """Yield the package's modules that a file imports at its top level, those for type checkers alone included."""
    package = ("fedpfl", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.col_offset <= 4 and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            whole = ".".join(part for part in base if part)
            for alias in node.names:
                name = f"{whole}.{alias.name}"
                yield name if name in MODULES else whole


def module_of(path):
    return ".".join(("fedpfl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def test_no_module_imports_itself_through_others():
    graph = {name: {*imported_modules(path)} - {name} for name, path in MODULES.items() if path.name != "__init__.py"}
    # What is imported by nobody that is left, or imports nobody that is left, is in no circle.
    while True:
        free = {name for name, used in graph.items() if not used & graph.keys()}
        if not free:
            break
        graph = {name: used for name, used in graph.items() if name not in free}
    used_by_some = set().union(*(used for used in graph.values())) if graph else set()
    assert not {name: sorted(used & graph.keys()) for name, used in graph.items() if name in used_by_some}


def test_the_device_s_packages_are_listed_alike_everywhere():
    root = PACKAGE.parent
    assert f'"fedpfl/{{{",".join(DEVICE_PACKAGES)}}}/**/*.py" = "py38"' in (root / "pyproject.toml").read_text()
    *first, last = (f"`{name}`" for name in DEVICE_PACKAGES)
    text = " ".join((root / "docs" / "architecture.md").read_text(encoding="utf-8").split())
    assert f"A worker on a device needs only the packages {', '.join(first)} and {last};" in text
