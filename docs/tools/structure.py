"""Print the measures of the structure: ``python docs/tools/structure.py``."""

from __future__ import annotations

import ast
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from test_layering import (  # noqa: E402
    MODULES,
    RANK,
    core_modules,
    edges,
    guide,
    imports,
    lines_of,
    part_of,
    plain_run,
    repeated_names,
)  # fmt: skip

from fedpfl.core.code_hash import DEVICE_PACKAGES  # noqa: E402
from fedpfl.methods import Method  # noqa: E402
from fedpfl.setup.all_settings import all_settings  # noqa: E402


def lines_of_docstrings(text: str) -> int:
    """Return how many lines of a module its docstrings take."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = (node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and ast.get_docstring(node))
    return sum((line.end_lineno or 0) - line.lineno + 1 for line in first)


def blank_lines(text: str) -> int:
    """Return how many lines of a module are blank."""
    return sum(not line.strip() for line in text.splitlines())


def main() -> None:
    """Print each measure on a line."""
    texts = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    whole = sum(text.count("\n") for text in texts.values())
    arrows = {(part_of(module), part_of(other)) for module in MODULES for other in imports(module) if other in MODULES}
    upward = sum(RANK[above] >= RANK[below] for below, above in arrows if below != above)
    classes = Counter(
        node.name for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    )
    hooks = [name for name in {**vars(Method), **Method.__annotations__} if not name.startswith("_")]
    listeners = [module for module, text in texts.items() if "(Listener" in text]
    docstrings, blank = sum(map(lines_of_docstrings, texts.values())), sum(map(blank_lines, texts.values()))
    print(f"lines of fedpfl/: {whole:,}, of them docstrings {docstrings:,}, blank {blank:,}")
    print(f"lines of the core: {lines_of(core_modules()):,}, in {len(core_modules())} files")
    print(f"imports of the core that are not of the core: {sum(map(len, edges().values()))}")
    print(f"files of the guide to a round: {len(guide())}, {lines_of(guide()):,} lines")
    with tempfile.TemporaryDirectory() as folder:
        loaded, passed = plain_run(Path(folder))
    print(f"a plain run imports: {len(loaded)} modules, {lines_of(loaded):,} lines")
    print(f"functions that its round passes: in {len(passed)} modules, {lines_of(passed):,} lines")
    print(f"settings: {len(all_settings())}")
    print(f"upward arrows: {upward}")
    print(f"attributes and hooks of Method: {len(hooks)}")
    print(f"classes that share a name: {[name for name, count in classes.items() if count > 1] or 0}")
    print(f"names of files that occur more than once: {repeated_names()}")
    print(f"interfaces of listeners: 1 (Listener), in {len(listeners)} files")
    print(f"packages on a device: {len(DEVICE_PACKAGES)}")
    print(f"bytes of pyproject.toml: {(ROOT / 'pyproject.toml').stat().st_size:,}")


if __name__ == "__main__":
    main()
