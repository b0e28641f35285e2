"""The analyses that a table or figure of one paper needs: files next to it, in ``experiments/PAPER/analyses/``."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ...launch.shipped import EXPERIMENTS, folder

for path in sorted((folder(EXPERIMENTS) or Path()).glob("*/analyses/*.py")):
    spec = spec_from_file_location(f"{__package__}.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
