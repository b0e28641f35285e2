"""How a run begins: at round 1, or after an interruption."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING, getLogger
from pathlib import Path

from ..core import user_code
from ..core.checksummed_files import read_arrays, write_arrays
from ..core.errors import ConfigError, LayoutError
from ..core.extra_arrays import SERVER
from ..core.metrics import TARGETS
from ..core.model_state import hidden_layers
from ..core.option import TaskFacts
from ..core.server_view import new_clients
from ..results.board_names import board_names
from ..results.export import CLIENTS
from ..results.resumed_run import ResumedRun
from ..results.run_folder import RunFolder, writer
from ..setup.assembly import model_name
from ..setup.config import Config
from .agreement import Agreement
from .rounds import RoundLoop
from .transport import Members

logger = getLogger("flwr")


class Beginning:
    """How a run begins: at round 1."""

    finished = 0  # the round after which it goes on

    def __init__(self, config: Config) -> None:
        self.config, self.folder = config, RunFolder.create(config)

    def open(self) -> None:
        """Read what there is of an earlier run, once nobody else uses the folder."""

    def take_task(self, agreed: Agreement, transport: Members, remarks: Sequence[str]) -> None:
        """Record the task on which the clients have agreed, or compare it with that of before."""
        config = self.config
        _require_same_names(config, agreed.names)
        samples = [(client.train_samples, client.test_samples) for client in agreed.clients]
        facts = {
            "names": agreed.names, "models": agreed.models, "changed": _changed(config), "boards": board_names(),
            "model": model_name(config, agreed.input_shape, agreed.vocabulary),
            "written_by": writer(config),  # again: what models open is known now
        }  # fmt: skip
        remarks = [*remarks_of(config, agreed, transport.real), *remarks]
        self.folder.describe(
            agreed.input_shape, agreed.classes, remarks, agreed.vocabulary, agreed.division,
            transport.identities(), samples=samples, threads=agreed.threads,
            **transport.about_data(), **agreed.data, **{key: fact for key, fact in facts.items() if fact},
        )  # fmt: skip
        if arrays := transport.about_clients():
            write_arrays(self.folder.path / CLIENTS, arrays)

    def prepare(self, loop: RoundLoop) -> None:
        """Give the loop the state from which the first round starts; it has that of round 1."""


class Resumed(Beginning):
    """A run that is resumed after its last round with an intact state."""

    folder: ResumedRun

    def __init__(self, config: Config) -> None:
        self.config, self.folder = config, ResumedRun.reopen(config)

    def open(self) -> None:
        """Find the round."""
        self.finished, self._state, remarks = self.folder.last_intact(self.config.run.state_dir)
        _tell(self.folder, remarks)

    def take_task(self, agreed: Agreement, transport: Members, remarks: Sequence[str]) -> None:
        """Refuse clients with another task than before."""
        self.folder.require_task(agreed.input_shape, agreed.classes, agreed.division, names=agreed.names)
        self.folder.require_unchanged_samples({client: one.data for client, one in agreed.descriptions.items()})
        self.folder.require_models({client: agreed.models.get(str(client), "") for client in agreed.descriptions})
        self.folder.add_identities(transport.identities(), agreed.data.get("data_of_clients"))

    def prepare(self, loop: RoundLoop) -> None:
        """Restore the state, and drop what was recorded after it."""
        try:
            loop.load_state(self._state)
        except LayoutError as error:
            allowed = f"has other arrays than the run to resume: {error}"
            raise ConfigError("model", self.config.run.model, allowed) from error
        self.folder.drop_after(self.finished)
        before, now = self.folder.config()["num-server-rounds"], self.config.run.num_server_rounds
        if self.config.training.learning_rate_schedule == "cosine" and before != now:
            text = "fedpfl: the cosine schedule now ends after %d rounds: the rates of the first ones were for %d"
            logger.log(WARNING, text, now, before)
        self.folder.mark_resumed(self.config)


# What decides how samples reach a model.
SCALING = ("standardize", "normalize")


def beginning_of(config: Config) -> Beginning:
    """Return how a run with these settings begins."""
    if config.run.resume:
        return Resumed(config)
    return Beginning(config)


def _run_of_weights(config: Config) -> RunFolder | None:
    """Return the run in whose folder the initial weights lie, if there is one."""
    folder = Path(config.run.initial_weights).expanduser().parent
    return RunFolder(folder) if config.run.initial_weights and (folder / "task.json").is_file() else None


def _require_same_names(config: Config, names: Mapping[str, str]) -> None:
    """Refuse weights in a run's folder whose columns, or whose head's classes, are others or in another order."""
    if (run := _run_of_weights(config)) is None:
        return
    path, before = Path(config.run.initial_weights).expanduser(), run.task().get("names", {})
    of_columns = before.get("columns"), names.get("columns")
    differ = {"columns": all(of_columns) and of_columns[0] != of_columns[1]}
    if any(name.startswith("head.") for name in read_arrays(path)):
        differ["classes"] = before.get("classes") != names.get("classes")
    if what := [key for key, is_other in differ.items() if is_other]:
        allowed = (
            f"its run had other {' and '.join(what)}, or another order; a copy of the file alone is taken as it is"
        )
        raise ConfigError("initial-weights", config.run.initial_weights, allowed)


def _changed(config: Config) -> list[str]:
    """Return the settings that are not those of a run of which only the method is given."""
    defaults = Config.parse({"method": config.run.method}).flat()
    return [key for key, value in config.flat().items() if key == "method" or value != defaults.get(key)]


def remarks_of(config: Config, agreed: Agreement, real: bool) -> list[str]:
    """Return the remarks on the settings that a user should know before round 1."""
    total = len(agreed.classes)
    clients = total - len(new_clients(config.run.seed, config.run.new_clients, total))
    of_method = user_code.guarded("method", f"{config.method.name}.remarks", config.method.remarks)
    remarks = of_method(agreed.model, clients, config.run.num_server_rounds)
    if (run := _run_of_weights(config)) is not None:
        before, now = run.config(), config.flat()
        remarks = [*remarks, *(
            f"{key} = {now[key]}: the run of initial-weights had {before[key]}, so its weights expect other inputs"
            for key in SCALING if before.get(key, now[key]) != now[key]
        )]  # fmt: skip
    asked = config.run.asked(clients)
    if unkept := getattr(agreed.model, "unkept", ()):
        remarks = [*remarks, f"the model changes {', '.join(unkept)} as it trains, which no state dict has: each "
                   "client's turn begins with what the model was built with; a persistent buffer is kept"]  # fmt: skip
    if in_common := getattr(agreed.model, "in_common", ()):
        remarks = [*remarks, f"the model changes {', '.join(in_common)} as it trains, outside of its modules, where "
                   "all clients of a process share it: if it counts in what the model computes, the numbers depend on "
                   "the number of processes; a persistent buffer is each client's"]  # fmt: skip
    if hidden := hidden_layers(agreed.model):
        remarks = [*remarks, f"the model has layers or parameters in {', '.join(hidden)}, which PyTorch does "
                   "not see: neither trained nor sent; those in nn.ModuleList and nn.ParameterList are"]  # fmt: skip
    alone = sum(client.test_samples == 1 for client in agreed.clients)
    if alone and config.training.labels == TARGETS:
        remarks = [*remarks, f"{alone} of {total} clients have one test sample, of which there is no R²: they are in "
                   "no mean of R² and of the loss"]  # fmt: skip
    if config.method.aggregation.rule.takes_slices:
        narrow = len(agreed.layouts)
        without = 'client-models, as in client-models="0-4:@0.5", gives clients a narrower one'
        tests = f"{narrow} of {total} clients have a narrower one; only the others test the global model"
        remarks = [*remarks, tests if narrow else f"all clients have the whole model: {without}"]
    if not (agreed.sharing.layout.size or any(extra.goes(SERVER) for extra in config.method.extras)):
        config.require_combined()
    return [*remarks, *config.remarks(TaskFacts(agreed.model, asked, agreed.sharing.layout.size, real))]


def _tell(folder: ResumedRun, remarks: Iterable[str]) -> None:
    for remark in [*(f"{folder.path.name}: {change}" for change in folder.changes()), *remarks]:
        logger.log(WARNING, "fedpfl: %s", remark)
