"""The README as the package index shows it: its links and pictures lead to the repository.

hatchling calls this while it builds a package. Without an address in ``fedpfl/version.py`` the links stay as they are.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """Return Markdown whose links to files of the repository lead to its pages, and pictures to their content."""
    return _LINK.sub(
        lambda match: f"{match[1]}[{match[2]}]({repository}/{'raw' if match[1] else 'blob'}/main/{match[3]})", text
    )


class Readme(MetadataHookInterface):
    """Gives the package its README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README's text to the package's metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = runpy.run_path(str(Path(self.root, "fedpfl/version.py")))["REPOSITORY"].rstrip("/")
        text = absolute(text, repository) if repository else text
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
