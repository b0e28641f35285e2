"""``fedpfl up``: the whole testbed on this machine, one run through it, and its outcome in the exit code."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from .common import RunConfig, ending_signals, output_dir, prepare, require_allowed
from .program import app
from .run import AppDir, Outcome, Quiet, Resume, Web, execute, live_page

if TYPE_CHECKING:
    from ..launch.plan import Plan

DEFAULT_NODES = 3
BOARD_NAMES = ("nano",)


class TransportName(StrEnum):
    """How SuperNodes reach the SuperLink."""

    HTTP = "http"
    MQTT = "mqtt"


class StateName(StrEnum):
    """Where the SuperLink has its state."""

    DATABASE = "database"
    MEMORY = "memory"


@app.command("up")
def up_command(
    app_dir: AppDir = None,
    run_config: RunConfig = None,
    num_supernodes: Annotated[
        int | None,
        typer.Option(
            "--num-clients",
            "--num-supernodes",
            min=1,
            help=f"The setting num-clients, the number of SuperNodes; {DEFAULT_NODES} by default.",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Number of devices for the SuperNodes; by default three SuperNodes per device."),
    ] = None,
    resume: Resume = None,
    as_json: Outcome = False,
    quiet: Quiet = False,
    keep_log: Annotated[bool, typer.Option("--keep-log", help="Keep Flower's log even if the run succeeds.")] = False,
    worker: Annotated[
        bool,
        typer.Option(help="One warm worker per device; without it every message starts a process that imports torch."),
    ] = True,
    transport: Annotated[
        TransportName | None,
        typer.Option(help="How SuperNodes reach the SuperLink: over HTTP (the default) or through an MQTT broker."),
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ansible inventory of a testbed to rehearse: devices, clients, data."),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(BOARD_NAMES)}]", help="Limit each device to the resources of this board; needs root."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar='"RATE DELAY"',
            help='Network between a device and the server: "20mbit 15ms", or "5mbit 50ms 2% off 60-660".',
        ),
    ] = None,
    state: Annotated[
        StateName,
        typer.Option(
            help=(
                "Where the SuperLink stores its state. database: a restart during the run loses nothing. memory: "
                "needs less CPU time."
            )
        ),
    ] = StateName.DATABASE,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help=(
                "Run this command instead of a single run, with the testbed as federation fedpfl, and exit with its "
                "exit code."
            ),
        ),
    ] = None,
    keys: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for certificates, node keys and passwords, made on first use."),
    ] = Path("~/.fedpfl/testbed"),
    web: Web = False,
) -> None:
    """Run the app on SuperNodes on this machine.

    Unlike a simulation it uses what real devices use: separate processes, TLS and node keys. All listen on loopback
    and end with the command.

    Example: fedpfl up --num-clients 6 --devices 2
    """
    from ..bench.boards import BOARDS
    from ..bench.inventory import read_inventory
    from ..bench.relay import Network
    from ..bench.testbed import Testbed

    bench = read_inventory(inventory) if inventory is not None else None
    if board is not None and board not in BOARDS:
        raise ConfigError("board", board, f"must be {' or '.join(BOARDS)}")
    if network is not None:
        Network.parse(network)
    # A testbed of boards talks MQTT: the playbooks set up nothing else.
    way = transport or (TransportName.MQTT if bench else TransportName.HTTP)
    if command is not None:
        others = {"run-config": run_config, "resume": resume, "json": as_json, "web": web}
        if refused := [option for option, value in others.items() if value]:
            raise ConfigError(
                refused[0], others[refused[0]], "is for a single run; with --command put it into the command"
            )
    bed = Testbed(keys.expanduser(), way is TransportName.MQTT, state is StateName.DATABASE)

    def start(clients: int, code: Path | None, runs: Path) -> None:
        limits = BOARDS[board] if board else None
        bed.start_nodes(clients, devices, worker, code, runs, bench, limits, network)
        if bed.watch and not quiet and not web:
            typer.echo(f"to watch it in another terminal: {shlex.join(bed.watch)}", err=True)

    if command is not None:
        clients = bench.clients if bench else num_supernodes or DEFAULT_NODES
        with ending_signals(), bed:
            start(clients, app_dir, output_dir())
            raise typer.Exit(bed.carry_out(shlex.split(command), clients))

    pages = ExitStack()

    def make() -> Plan:
        from ..core.user_code import require_installed
        from ..setup.all_settings import code_in

        own_data = bench is not None and len(bench.data) == len(bench.present)
        clients = bench.clients if bench else num_supernodes
        plan = prepare(app_dir, run_config, clients, resume, DEFAULT_NODES, own_data)
        if bench and (devices is not None or num_supernodes not in (None, bench.clients)):
            raise ConfigError(
                "inventory",
                str(inventory),
                "already sets the number of devices and clients; leave out --devices and --num-clients",
            )
        if bench and plan.config.data.num_clients != bench.clients:
            raise ConfigError(
                "num-clients",
                plan.config.data.num_clients,
                f"must be {bench.clients}, as many clients as the inventory has",
            )
        if plan.app is None:
            require_installed(code_in(plan.run_config()))
        return plan

    def submit(plan: Plan) -> str:
        start(plan.config.data.num_clients, plan.app, plan.folder.path.parent)
        if web:
            pages.enter_context(live_page(plan, bed.watcher))
        return bed.submit(plan.app, plan.run_config())

    def run(plan: Plan) -> None:
        from .follow import run_and_follow

        with pages:
            run_and_follow(bed, plan, submit, quiet, keep_log)

    # The SuperLink takes as long to start as the checks with their import of torch, and so they run side by side.
    check = partial(require_allowed, [] if resume else run_config, app_dir)
    execute("up", check, make, run, as_json, quiet, bed)
