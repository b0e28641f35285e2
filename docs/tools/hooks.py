"""What ``make docs`` does beside MkDocs: pages that are made of something else, equations, links out of the folder.

MkDocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import latex2mathml.converter
from commands import commands_page
from method_pages import groups, title_of
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedpfl import version
from fedpfl.methods import methods

ROOT = Path(__file__).resolve().parents[2]
# Pages that lie elsewhere in the repository, by the name that they get here.
ELSEWHERE = {
    "contributing/index.md": "CONTRIBUTING.md",
    "devices/ansible.md": "deploy/ansible/README.md",
    "devices/services.md": "deploy/systemd/README.md",
}
# How much a page counts in the search, by its name or folder: most searches are for something to do,
# not for a number, and the words of settings and interfaces are everywhere.
BOOST = {
    "how-to/troubleshooting.md": 12,
    "how-to/faq.md": 3,
    "how-to/adding-a-method.md": 0.5,
    "how-to/from-a-flower-app.md": 0.2,
    "methods/index.md": 6,
    "how-to": 2,
    "learn": 2,
    "tutorial": 2,
    "devices": 2,
    "reference/api.md": 0.02,
    "results": 0.5,
    "contributing": 0.5,
}
_LINK = re.compile(r"\[((?:[^\]\n]|\n(?!\n))+)\]\(([^)\s]+)\)")
_MATH = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`?[\w./-]+\.(md|ipynb)`?")
# A role in a docstring, as it comes out of Markdown, and the heading of the name to which the docstring belongs.
_ROLE = re.compile(r'id="(fedpfl\.\w+)[\w.]*"|:\w+:<code>~?([\w.]+)(?:\(\))?</code>')
_NAMED = re.compile(r'<h\d id="(fedpfl\.[\w.]+)".*?</h\d>', re.DOTALL)
_SEARCH = 'data-md-component="search" role="dialog"'
_FENCE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Say where repository and site are, where ``fedpfl/version.py`` does; with mike show a menu of versions."""
    _put_methods(config)
    config.copyright = f"fedpfl {version.__version__}, Apache License 2.0"
    if version.REPOSITORY:
        owner, name = version.REPOSITORY.rstrip("/").split("/")[-2:]
        config.repo_url, config.repo_name = version.REPOSITORY, f"{owner}/{name}"
        config.site_url = version.urls()["Documentation"]
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def _put_methods(config: MkDocsConfig) -> None:
    """Put a page for each method under the overview of methods, in its groups."""
    entries: list[Any] = ["methods/index.md"]
    for group, texts in groups().items():
        names = [name for name in texts if name != "about"]
        entries.append({group: [{title_of(methods()[name]): f"methods/{name}.md"} for name in names]})
    for entry in config.nav or ():
        if "Methods" in entry:
            entry["Methods"] = entries


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the commands, the notebooks and the pages that lie elsewhere."""
    made = {"reference/commands.md": commands_page()}
    made |= {page: (ROOT / path).read_text(encoding="utf-8") for page, path in ELSEWHERE.items()}
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            text = Path(str(file.abs_src_path)).read_text(encoding="utf-8")
            made[file.src_uri.removesuffix(".ipynb") + ".md"] = notebook_page(json.loads(text), file.src_uri)
            files.remove(file)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set equations, and turn links that lead out of ``docs`` to their pages here or to plain names."""
    name = page.file.src_uri
    page.meta.setdefault("search", {"boost": BOOST.get(name, BOOST.get(posixpath.dirname(name), 1))})
    source = ROOT / ELSEWHERE.get(name, f"docs/{name}")
    markdown = _MATH.sub(lambda match: equation(match.group(1)), markdown)
    return _outside_fences(markdown, lambda text: _LINK.sub(lambda match: _link(match, source), text))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make of headings without words plain cells, and of names in docstrings links."""
    content = content.replace("<th></th>", "<td></td>")
    return _NAMED.sub(lambda match: match.group() + source_link(match.group(1)), references(content))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the dialogue of the search, which the theme does not."""
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')


def references(content: str) -> str:
    """Turn the roles of docstrings into links to the names on the page; into code where it has no such name."""
    places, of = set(re.findall(r'id="(fedpfl\.[\w.]+)"', content)), ""

    def link(match: re.Match[str]) -> str:
        nonlocal of
        heading, name = match.groups()
        if heading:
            of = heading
            return match.group()
        last = name.rpartition(".")[2]
        candidates = (place for place in (f"{of}.{name}", f"fedpfl.{name}", name, f"fedpfl.{last}") if place in places)
        place = next(candidates, "")
        code = f"<code>{last}</code>"
        return f'<a href="#{place}">{code}</a>' if place else code

    return _ROLE.sub(link, content)


def source_link(name: str) -> str:
    """Return where a class or function is defined, as a link if the repository has an address; "" for a value."""
    member = pkgutil.resolve_name(name)
    member = inspect.unwrap(getattr(member, "fget", member))
    if not (inspect.isclass(member) or inspect.isfunction(member)):
        return ""
    path = Path(inspect.getfile(member)).relative_to(ROOT)
    line = inspect.getsourcelines(member)[1]
    text = f"<code>{path}:{line}</code>"
    if version.REPOSITORY:
        text = f'<a href="{version.REPOSITORY}/blob/main/{path}#L{line}">{text}</a>'
    return f'<p class="source">{text}</p>'


def notebook_page(notebook: dict[str, Any], path: str = "") -> str:
    """Return a notebook as Markdown: its texts, its code in fences, and what each cell printed and returned.

    With ``path``, where it lies in ``docs``, a link opens it in Colab if the repository is on GitHub.
    """
    parts = []
    if path and version.REPOSITORY.startswith("https://github.com/"):
        where = f"{version.REPOSITORY.removeprefix('https://').rstrip('/')}/blob/main/docs/{path}"
        parts.append(f"[Open in Colab](https://colab.research.google.com/{where.replace('github.com', 'github', 1)})")
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown: a picture if it has one, else text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f"![Picture that the cell returns](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def equation(latex: str) -> str:
    """Return lines of LaTeX as MathML, which browsers set without a script; one line, one equation."""
    rows = [latex2mathml.converter.convert(line.strip(), display="block") for line in latex.splitlines() if line]
    return '<div class="equations" tabindex="0">' + "".join(rows) + "</div>\n"


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to what stands outside of code blocks."""
    done, parts = 0, []
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[done : fence.start()]), fence.group()]
        done = fence.end()
    return "".join([*parts, change(markdown[done:])])


def _link(match: re.Match[str], source: Path) -> str:
    """Return a link as the site needs it; of a file that is in the repository and not on the site, its name alone.

    A link that has the file's name as its text gets the page's title.
    """
    text, target = match.groups()
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return match.group()
    there = (source.parent / path).resolve()
    if not there.exists() and there.suffix != ".md":
        raise FileNotFoundError(f"{source}: there is no {path}")
    name = str(there.relative_to(ROOT))
    if _FILE.fullmatch(text):
        text = title(there)
    page = _page(name)
    if not page:
        return match.group(1)
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(_page(str(source.relative_to(ROOT)))))}{mark}{anchor})"


def _page(name: str) -> str:
    """Return what a file of the repository is on the site; "" for one that is not there."""
    for page, elsewhere in ELSEWHERE.items():
        if name == elsewhere:
            return page
    if not name.startswith("docs/"):
        return ""
    return re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))


def title(path: Path) -> str:
    """Return the title of a page, which may be a notebook, or one that is made."""
    content = path.read_text(encoding="utf-8") if path.is_file() else ""
    if path.suffix == ".ipynb":
        content = "".join(json.loads(content)["cells"][0]["source"])
    heading = re.search(r"^# (.+)$", content, re.MULTILINE)
    return heading.group(1) if heading else path.stem.capitalize()
