"""Reports: runs as one page that needs no network, and their plots as files."""

from __future__ import annotations

from .page import write_page, write_plots
from .sections import Section, sections

__all__ = ["Section", "sections", "write_page", "write_plots"]
