"""Reports: runs as one page that needs no network, live or as a file, and their plots as files."""

from __future__ import annotations

from .page import document, write_page, write_plots
from .sections import Section, Snapshot, progress, sections

__all__ = ["Section", "Snapshot", "document", "progress", "sections", "write_page", "write_plots"]
