"""Everything that is decided, and checked, before a run starts anything."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import references, user_code
from ..core.errors import ConfigError, FedpflError
from ..core.files import private_folder
from ..core.settings import Value
from ..data import default_clients as natural_clients
from ..data import with_partitioner
from ..data.partitioners import without_auto
from ..data.registry import AUTO
from ..methods import discover
from ..models import require_known
from ..results.resumed_run import ResumedRun
from ..results.run_folder import RunFolder, find_run
from ..setup.all_settings import absolute_places, all_settings, check_keys, know_method
from ..setup.config import Config, RunSettings, told_as_clients_model
from ..setup.options.after_the_end import PersonaliseSettings
from ..setup.options.availability import AvailabilityOption
from ..training.device import require_device
from .shipped import app_settings

# Where neither the settings nor the data say how many there are.
DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class Plan:
    """A run that can be started."""

    app: Path | None  # its folder; None: the installed package
    config: Config  # with absolute paths, a name and the number of clients
    folder: RunFolder  # where the server will put the results

    def run_config(self) -> dict[str, Value]:
        """Return the settings to hand to Flower."""
        return self.config.flat()

    def has_finished(self) -> bool:
        """Return whether the run has done all its rounds and written its results, so that there is nothing to train."""
        if self.config.of(PersonaliseSettings).on or not self.folder.finished:
            return False
        run = self.config.run
        # What is damaged is made again when the run is resumed.
        if not ResumedRun(self.folder.path).is_intact(run.state_dir):
            return False
        history = self.folder.history()
        return history.last_round >= run.num_server_rounds or history.stalled(run.early_stop)

    def how_to_continue(self) -> str:
        """Return why resuming a run that has finished trains nothing, and which setting changes that."""
        name, last = self.config.run.run_name, self.folder.history().last_round
        if last < self.config.run.num_server_rounds:
            stopped = f"ended early after {last} rounds (early-stop = {self.config.run.early_stop})"
            return f"{name} {stopped}; to continue: --run-config 'early-stop=0'"
        return f"{name} has finished its {last} rounds; for more: --run-config 'num-server-rounds={2 * last}'"


def prepare(
    app: Path | None,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
    resume: str | None = None,
    default_clients: int = DEFAULT_CLIENTS,
    own_data: bool = False,
) -> Plan:
    """Check everything that can be checked before a run.

    ``app`` is the app's folder; None means the installed package. ``defaults`` are its settings by key, and ``changes``
    those that replace them; the rest takes the package's defaults. ``default_clients`` counts where neither the setting
    nor the data say how many there are. ``resume`` is the name or folder of a run to resume. ``own_data``: each client
    has data of its own, so there are none in common to check.
    """
    user_code.set_folder(app or Path())
    user_code.begin_run()
    if app is not None:
        discover()
    try:
        know_method(defaults)  # the app's settings have those of its method, also where another one is run
    except FedpflError as error:
        if "method" not in changes and resume is None:
            reason = f"the default of pyproject.toml: {str(error).partition(': ')[2]}"
            raise ConfigError("method", defaults["method"], reason) from error
        settings = all_settings()
        defaults = {key: value for key, value in defaults.items() if key in settings and key != "method"}
    values = {**defaults, **changes}
    if resume is None:
        check_keys(values)
    else:
        stored = _stored_settings(resume, values, changes)
        check_keys({**values, "method": stored["method"]})
        values = stored
    config = Config.parse(values)
    require_known(config.run.model)
    models = [config.run.model_of(0), *(config.run.named_model(model) for _, model in config.run.listed_models())]
    for model in dict.fromkeys(models):
        with told_as_clients_model(model != config.run.model):
            require_known(model)
    if config.run.metrics:
        from fedpfl.training.measure import find

        find(config.run.metrics)
    config.training.augmentation_of()  # an error of it comes before any process starts
    decided: dict[str, Value] = {}
    if not config.run.resume:
        chosen = without_auto(config.data, False, False) if own_data else with_partitioner(config.data, config.run.seed)
        decided["partitioner"] = chosen.partitioner
    number = config.data.num_clients or natural_clients(config.data, config.run.seed)
    decided["num-clients"] = number or default_clients
    decided["run-name"] = config.run.run_name or _new_name(config)
    # The server and the clients run in another working directory.
    config = Config.parse({**absolute_places(config.flat()), **decided})
    require_device(config.training)
    over = config.of(PersonaliseSettings).on
    if not over and config.wants(AvailabilityOption):
        from ..engine.options.availability import available

        available(config)
    run = _reopened(config, over) if config.run.resume else _fresh(config)
    return Plan(None if app is None else app.resolve(), config, run)


def project_settings(folder: Path, *without: str) -> dict[str, Value]:
    """Return the settings, not at their defaults, that a Flower app in a folder makes for the runs of a grid.

    Each run of a grid has its own seed, name and places; ``without`` are further settings that do not count.
    """
    app, settings = app_settings(folder) or {}, all_settings()
    ours = {"seed", "run-name", "resume", "output-dir", "state-dir", *without}
    return {
        key: value
        for key, value in app.items()
        if key in settings and value != settings[key].default and key not in ours
    }


def _new_name(config: Config) -> str:
    # Two runs may start in the same second, and their folders appear only seconds later.
    moment = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return f"{moment}-{references.short_name(config.run.method)}-{references.short_name(config.data.dataset)}"


def _fresh(config: Config) -> RunFolder:
    root = Path(config.run.output_dir)
    if not (folder := RunFolder(root / config.run.run_name)).is_free():
        raise folder.taken()
    for key, path in (("output-dir", root), ("state-dir", Path(config.run.state_dir))):
        try:
            private_folder(path)
        except OSError as error:
            raise ConfigError(key, str(path), f"cannot be written ({error.strerror})") from error
        if not os.access(path, os.W_OK):
            raise ConfigError(key, str(path), "cannot be written")
    return folder


# -- a run that goes on -----------------------------------------------------------------------------------------------


def _stored_settings(resume: str, values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that is resumed, with ``changes``."""
    run = find_run(resume, Path(str(values.get("output-dir", RunSettings.output_dir))))
    where = {"run-name": run.path.name, "output-dir": str(run.path.parent), "resume": True}
    # What auto meant was decided when the run began.
    changes = {key: value for key, value in changes.items() if (key, value) != ("partitioner", AUTO)}
    number, nodes = changes.get("num-clients"), run.task().get("clients", 0)
    if number and nodes not in (0, number) and not run.config().get("num-clients") and "personalise" not in changes:
        raise ConfigError("num-clients", number, f"must be {nodes}, as in the run")
    settings = {**run.config(), **changes, **where}
    # Without a number `flwr run` took one client for each node that there was.
    return {**settings, "num-clients": settings.get("num-clients") or nodes}


def _reopened(config: Config, more_clients: bool) -> ResumedRun:
    """Return the folder of a run that is resumed, which nobody else is running now; the server locks it again."""
    run = ResumedRun.reopen(config, more_clients=more_clients)
    with run.exclusive():
        return run
