"""The live page next to a run: ``--web`` of ``fedpfl run`` and ``fedpfl up``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..launch.plan import Plan
    from ..mqtt.account import Account

Web = Annotated[
    bool, typer.Option("--web", help="Serve a live page of the run on this machine until it ends; prints its address.")
]


def live_page(plan: Plan, account: Account | None = None) -> AbstractContextManager[None]:
    """Return a context in which a live page of a run, and of the bench of an account, is served."""
    from ..live.server import LivePage, beside, listen

    page = LivePage(plan.folder.path.parent, listen(), account=account)
    typer.echo(f"live page: {page.address(plan.folder.path.name)}", err=True)
    return beside(page)
