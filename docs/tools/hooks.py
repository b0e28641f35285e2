"""What ``make docs`` does beside MkDocs: pages that are made of something else, equations, links out of the folder.

MkDocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
from commands import commands_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages that lie elsewhere in the repository, by the name that they get here.
ELSEWHERE = {"ansible.md": "deploy/ansible/README.md"}

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")
_MATH = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\ngraph TD\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NODE = re.compile(r'(\w+)(?:\["([^"]*)"\])?')
_ARROW = re.compile(r'-- "[^"]*" -->|-\. "[^"]*" \.->|-->')
_FENCE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the commands, the notebooks and the pages that lie elsewhere."""
    made = {"commands.md": commands_page()}
    made |= {page: (ROOT / path).read_text(encoding="utf-8") for page, path in ELSEWHERE.items()}
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            text = Path(str(file.abs_src_path)).read_text(encoding="utf-8")
            made[file.src_uri.removesuffix(".ipynb") + ".md"] = notebook_page(json.loads(text))
            files.remove(file)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set equations, and turn links that lead out of ``docs`` to their pages here or to plain names."""
    source = ROOT / ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    markdown = _MATH.sub(lambda found: equation(found.group(1)), markdown)
    markdown = _DIAGRAM.sub(lambda found: diagram(found.group(1)), markdown)
    return _outside_fences(markdown, lambda text: _LINK.sub(lambda found: _link(found, source), text))


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its texts, and its code in fences. Outputs are left out."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def equation(latex: str) -> str:
    """Return lines of LaTeX as MathML, which browsers set without a script; one line, one equation."""
    rows = [latex2mathml.converter.convert(line.strip(), display="block") for line in latex.splitlines() if line]
    return '<div class="equations">' + "".join(rows) + "</div>\n"


def diagram(text: str) -> str:
    """Return what a Mermaid graph says as rows of boxes, each above all that it uses; it takes no script to show."""
    labels: dict[str, str] = {}
    above: dict[str, set[str]] = {}
    for line in text.splitlines():
        nodes = _NODE.findall(_ARROW.sub(" ", line))
        labels |= {name: label for name, label in nodes if label}
        above.setdefault(nodes[-1][0], set()).update(name for name, _ in nodes[:-1])

    def depth(name: str) -> int:
        return max((depth(user) + 1 for user in above.get(name, ())), default=0)

    rows: dict[int, list[str]] = {}
    for name, label in labels.items():
        rows.setdefault(depth(name), []).append(f"<div>{html.escape(label)}</div>")
    inside = "".join(f"<div>{''.join(rows[level])}</div>" for level in sorted(rows))
    return f'<div class="diagram">{inside}</div>\n'


def _outside_fences(markdown: str, change: Any) -> str:
    """Apply a function to what stands outside of code blocks."""
    done, parts = 0, []
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[done : fence.start()]), fence.group()]
        done = fence.end()
    return "".join([*parts, change(markdown[done:])])


def _link(found: re.Match[str], source: Path) -> str:
    """Return a link as the site needs it; of a file that is in the repository and not on the site, its name alone."""
    text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return found.group()
    there = (source.parent / path).resolve()
    if not there.exists() and there.suffix != ".md":
        raise FileNotFoundError(f"{source}: there is no {path}")
    name = str(there.relative_to(ROOT))
    for page, elsewhere in ELSEWHERE.items():
        if name == elsewhere:
            return f"[{text}]({page}{mark}{anchor})"
    if not name.startswith("docs/"):
        return text
    if source.parent == ROOT / "docs" or (ROOT / "docs") in source.parents:
        return f"[{text}]({path.removesuffix('.ipynb') + '.md' if path.endswith('.ipynb') else path}{mark}{anchor})"
    return f"[{text}]({name.removeprefix('docs/')}{mark}{anchor})"
