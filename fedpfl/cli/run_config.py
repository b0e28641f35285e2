"""What the command line adds to a plan: the app's folder and the texts of ``--run-config``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ConfigError
from ..launch import plan
from ..launch.plan import DEFAULT_CLIENTS, Plan
from .common import app_settings, overrides, require_used


def prepare(
    app: Path | None,
    texts: Sequence[str] | None,
    num_supernodes: int | None,
    resume: str | None,
    default_clients: int = DEFAULT_CLIENTS,
    own_data: bool = False,
    continued: str | None = None,
) -> Plan:
    """Check everything that can be checked before a run."""
    folder = app or Path()
    defaults = app_settings(folder)
    if app is not None and defaults is None:
        hint = "" if app.exists() else "; settings follow -c: -c 'method=\"fedavg\"'"
        allowed = f"is not the folder of a Flower app (pyproject.toml with [tool.flwr.app]){hint}"
        raise ConfigError("app", str(app), allowed)
    given = overrides(texts)
    here = None if defaults is None else folder
    made = plan.prepare(here, defaults or {}, given, num_supernodes, resume, default_clients, own_data, continued)
    require_used(texts, [made.config.method.name])
    return made
