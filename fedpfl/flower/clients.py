"""The client's half of a strategy: an app that does everything, or the part around a training function of one's own.

A client keeps its personal arrays in Flower's ``Context.state``, which lives as long as its node, or below
``state_dir``, where they are there after a restart, too.
"""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from .. import models
from ..client.engine import HANDLERS, Engine
from ..client.guard import guard
from ..client.state import ClientState
from ..core import custom, own_code
from ..core.errors import ConfigError, FedpflError, LayoutError, NoPlainModel, StateError
from ..core.metrics import COUNT, SUM
from ..core.payload import Payload, is_probe
from ..core.rng import seed_global, torch_seed
from ..core.settings import Value
from ..core.sharing import Sharing, tied
from ..data import Dataset
from ..data.datasets.by_name import CustomLoader
from ..data.federation import FederatedData
from ..flower_private import CLIENT_APP_RAISED_EXCEPTION
from ..methods import Method
from ..models import BaseHeadModel
from ..models import user_model as own_models
from ..models.external import with_head
from ..setup.all_settings import check_keys
from ..setup.assembly import require_tied_alike, seed_model
from ..setup.config import Config
from ..setup.objects import as_setting
from ..setup.options.evaluate_global import EvaluateTrainedSettings
from ..setup.options.privacy import PrivacySettings
from .messages import FRAME, SETTINGS, from_content, numpy_of, to_content, to_framed_content
from .named_arrays import EXTRAS, NOT_SENT, from_named, others_of, read_settings, to_named
from .strategy import OF_ARRAYS, MethodStrategy, own_of

# A client's arrays in Context.state, which Flower copies with every message of a simulation.
MAX_STATE_BYTES = 64 * 2**20
# Engines that a process keeps: one for each client and its data.
MAX_ENGINES = 8
# What a method may do that loops of one's own do not: all of it in training, and in a test.
OF_MODEL = {**OF_ARRAYS, "prepare": "prepares the model"}
OF_TRAINING = {**OF_MODEL, "schedule": "trains in phases of its own", "conclude": "computes more after the training"}
OF_TRAIN_DATA = {
    "prepare": "prepares the model with them", "personalised": "may predict by them", "adaptation": "adapts to them",
}  # fmt: skip
OF_TEST = {**OF_MODEL, "personalised": "predicts in its own way", "adaptation": "adapts the model before a test"}
TUNES = "adapts the model before a test (tune-epochs)"
_STATE = re.compile(r"fedpfl/([A-Za-z0-9._-]+)/round-(\d+)")

Data = Callable[[Context], Any]


def client_app(
    method: str | type[Method] | type[MethodStrategy] | None = None,
    *,
    model: Callable[..., nn.Module] | nn.Module | str,
    data: Data,
    head: str = "",
    state_dir: str | Path | None = None,
    mods: list[Any] | None = None,
    **settings: Any,
) -> ClientApp:
    """Return a ClientApp that trains and tests by the strategy's method: phases, personal arrays, tests.

    Parameters
    ----------
    method : str, subclass of Method or strategy, optional
        The method that the client takes part in, by default the one that the strategy names. A method of one's own has
        to be given.
    model : callable, nn.Module or str
        As in the strategy.
    data : callable, Context → data
        Gets Flower's ``Context``, whose ``node_config`` has ``partition-id`` and ``num-partitions``, and returns the
        client's data: a DataLoader or Dataset of torch, or two of them to train and to test with; arrays (x, y) or
        (x_train, y_train, x_test, y_test); or a ``fedpfl.Dataset``.
    head : str
        As in the strategy.
    state_dir : str or Path, optional
        Folder of personal arrays; without it they are in ``Context.state`` and are lost when the SuperNode restarts.
    mods : list, optional
        Flower's mods.
    **settings
        Settings that the strategy does not decide, with underscores, such as ``device="cuda"`` or ``num_classes=10``.

    Returns
    -------
    ClientApp
        It answers ``query``, ``train`` and ``evaluate``.

    Raises
    ------
    ConfigError
        A setting is not allowed. What goes wrong later is the reply to the message, in one line.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpfl import strategies
    >>> def data(context):
    ...     rng = np.random.default_rng(context.node_config["partition-id"])
    ...     x = rng.normal(size=(80, 4)).astype("float32")
    ...     return x, (x[:, 0] > 0).astype("int64")
    >>> app = strategies.client_app(model="mlp", data=data, num_classes=2)
    """
    answering = _Answering(method, model, data, head, state_dir, settings)
    app = ClientApp(mods=mods)
    app.query()(answering.answer)
    app.train()(answering.answer)
    app.evaluate()(answering.answer)
    return app


class _Answering:
    """What :func:`client_app` does with a message."""

    def __init__(
        self, method: Any, model: own_models.OwnModel, data: Data, head: str, state_dir: str | Path | None,
        settings: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._made_of = method, model, data, head, state_dir, settings
        self._objects = ExitStack()
        self._model, self._data, self._head, self._state_dir = model, data, head, state_dir
        self._own = Own(method, settings, self._objects)
        built = model if isinstance(model, str) and not head else self._built
        self._text = built if isinstance(built, str) else self._objects.enter_context(as_setting("model", built))
        self._engines: OrderedDict[tuple[Any, ...], ContextEngine] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as what it was made of; Flower's ``run_simulation`` pickles an app."""
        return _Answering, self._made_of

    def _built(self, input_shape: tuple[int, ...], num_classes: int, vocabulary: int) -> nn.Module:
        return own_models.made(self._model, input_shape, num_classes, vocabulary, self._head)

    def answer(self, message: Message, context: Context) -> Message:
        """Answer a message, in the form in which it came."""
        try:
            return Message(self._content(message, context), reply_to=message)
        except FedpflError as error:
            return Message(Error(CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)

    def _content(self, message: Message, context: Context) -> RecordDict:
        kind, named = message.metadata.message_type, _is_named(message.content)
        payload = Payload() if named else from_content(message.content)
        if is_probe(payload):
            return to_content(Payload())
        given = config_of(message.content) if named else payload.config
        client, total = _numbers(context)
        engine = self._engine(self._own.config(given, model=self._text), client, total, context)
        engine.context = context
        if kind == MessageType.QUERY:
            payload.config["in-turn"] = False
        if not named:
            return to_framed_content(HANDLERS[kind](engine, client, payload))
        engine.use_model_of(client)
        return named_reply(engine, HANDLERS[kind](engine, client, flat_message(engine, message.content)), kind)

    def _engine(self, config: Config, client: int, total: int, context: Context) -> ContextEngine:
        key = (client, total, tuple(sorted(config.flat().items())), context.run_id)
        if key not in self._engines:
            while len(self._engines) >= MAX_ENGINES:
                self._engines.popitem(last=False)
            found = own_code.guarded("data", own_models.name_of(self._data), self._data)(context)
            read = read_data(found, config, client, self._model)
            self._engines[key] = ContextEngine(config, read, total, client, self._state_dir)
        self._engines.move_to_end(key)
        return self._engines[key]


class Own:
    """The settings that a client has of its own, and what it takes from a strategy's message."""

    def __init__(self, method: Any, settings: Mapping[str, Any], objects: ExitStack) -> None:
        cls = method.method if isinstance(method, type) and issubclass(method, MethodStrategy) else method
        text = cls if isinstance(cls, (str, type(None))) else objects.enter_context(as_setting("method", cls))
        self._settings = {key.replace("_", "-"): value for key, value in settings.items()}
        if text is not None:
            self._settings["method"] = text
        check_keys(self._settings)
        self._method = "" if text is None else Config.parse({"method": text}).method.name

    def config(self, given: Mapping[str, Any], model: str) -> Config:
        """Return the settings of a message: the strategy's, which may name no code and no place, and one's own."""
        sent = read_settings(given.get(SETTINGS, "{}"))
        name = sent.pop("method", self._method)
        if not name:
            raise ConfigError("method", None, "must be given: the strategy has a method of its own")
        if self._method and name != self._method:
            raise ConfigError("method", self._method, f"the strategy's method is {name}")
        refused = [key for key in sent if key in NOT_SENT or any(custom.references({key: sent[key]}))]
        if refused:
            raise ConfigError(refused[0], sent[refused[0]], "a strategy cannot set this on a client")
        values = {"method": name, **sent, **self._settings, "model": model, "num-clients": 0}
        check_keys(values)
        if (owner := guard()) is not None:
            owner.check(values, "", sent.keys())
        return Config.parse(values)


class ContextEngine(Engine):
    """An engine of one client, which keeps its arrays in Flower's ``Context.state`` unless there is a folder."""

    def __init__(
        self, config: Config, data: FederatedData, num_clients: int, client: int, state_dir: str | Path | None
    ) -> None:
        self._state_dir = state_dir
        self.context: Context | None = None
        if state_dir is None:  # models are files
            config = replace(config, run=replace(config.run, device_models="never"))
        super().__init__(config, data, num_clients, own=True, client=client)

    def state_of(self, key: str, client: int) -> ClientState:
        """Return where the client keeps its arrays."""
        assert self.context is not None
        return state_in(self.context, self._state_dir, key, client)


def state_in(context: Context, state_dir: str | Path | None, key: str, client: int) -> ClientState:
    """Return where a client keeps its arrays: below a folder if there is one, else in Flower's context."""
    return ContextState(context, key, client) if state_dir is None else ClientState(state_dir, key, client)


class ContextState(ClientState):
    """A client's arrays in Flower's ``Context.state``: those of the last round, and those that it started from."""

    def __init__(self, context: Context, key: str, client: int) -> None:
        super().__init__("", key, client)
        self._records, self._prefix = context.state, f"fedpfl/{key}"

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Refuse what needs files."""
        raise ConfigError("state_dir", None, "must be given: noise and models of a device are files")

    @property
    def of_a_device(self) -> bool:
        """Whether a server has asked for the secret; none is stored here."""
        return False

    def load(self, server_round: int) -> dict[str, np.ndarray]:
        """Return the arrays that the client held after a round."""
        record = self._records.array_records.get(f"{self._prefix}/round-{server_round}")
        if record is None:
            lost = "a SuperNode that is started again, or that trained for another strategy since, has lost them; "
            lost += "give state_dir to keep them"
            raise StateError(f"the personal arrays of round {server_round} are not here: {lost}")
        return {name: numpy_of(name, array) for name, array in record.items()}

    def save(self, arrays: Mapping[str, np.ndarray], server_round: int, started_from: int) -> None:
        """Keep the arrays that the client holds after a round."""
        if not arrays:
            return
        size = sum(array.nbytes for array in arrays.values())
        if size > MAX_STATE_BYTES:
            what = f"{size} bytes of personal arrays are too many for Context.state, which takes {MAX_STATE_BYTES}"
            raise ConfigError("state_dir", None, f"must be given: {what}")
        kept = {f"{self._prefix}/round-{number}" for number in (server_round, started_from)}
        for name in [name for name in self._records if _STATE.fullmatch(name) and name not in kept]:
            del self._records[name]
        self._records[f"{self._prefix}/round-{server_round}"] = ArrayRecord(
            {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}
        )


# -- messages ----------------------------------------------------------------------------------------------------------


def _is_named(content: RecordDict) -> bool:
    """Return whether a message is one of a strategy's hooks, with named arrays, and not of fedpfl's own loop."""
    records = content.config_records
    return FRAME not in records and any("server-round" in found for found in records.values())


def config_of(content: RecordDict) -> dict[str, Value]:
    """Return the settings of a message that a strategy sent."""
    for record in content.config_records.values():
        if SETTINGS in record:
            return cast(dict[str, Value], dict(record))
    raise LayoutError("no strategy of fedpfl sent this message: its config has no fedpfl")


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the shared arrays of a message of a strategy's hooks."""
    for name, record in content.array_records.items():
        if name != EXTRAS:
            return record
    raise LayoutError("a message without arrays arrived")


def flat_message(engine: Engine, content: RecordDict) -> Payload:
    """Return a message with named arrays as the engine takes it."""
    extras = others_of(content.array_records.get(EXTRAS))
    engine.sharing.accept(engine.extras.read(extras, "client"))
    layout = engine.sharing.layout
    config = config_of(content)
    if config.get("personal"):
        allowed = "is a split of the strategy's own: train and test in loops of your own, without fit and evaluate"
        raise ConfigError("personal", config["personal"], allowed)
    if config.get("frozen", layout.frozen) != layout.frozen:
        why = "the model or its weights are others there"
        if not config["frozen"]:
            why = "it has none; parameters that do not train (requires_grad=False) need a strategy with model="
        raise LayoutError(f"the frozen arrays differ from the server's: {why}")
    shared = from_named(layout, arrays_of(content), models.plain_names(engine.model))
    arrays = {**extras, **layout.pack(shared, engine.config.run.wire_dtype)}
    return Payload({**config, "layout": layout.to_text()}, {}, arrays)


def named_reply(engine: Engine, reply: Payload, kind: str) -> RecordDict:
    """Return what the engine answers as a message with named arrays, and numbers that have a mean."""
    metrics: dict[str, Any] = dict(reply.metrics)
    if kind == MessageType.EVALUATE:
        return RecordDict({"metrics": MetricRecord(means_of(metrics))})
    metrics = {"num-examples": metrics["train-samples"], **metrics}
    if reply.arrays.get("shared") is None:
        arrays, extras = ArrayRecord(), ArrayRecord({name: Array(array) for name, array in reply.arrays.items()})
    else:
        arrays, extras = to_named(engine.sharing.layout, reply.arrays, models.plain_names(engine.model))
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    if extras:
        content[EXTRAS] = extras
    return content


def means_of(metrics: Mapping[str, int | float]) -> dict[str, Any]:
    """Return the numbers of a test as means: accuracy and loss of each model that was tested."""
    found: dict[str, Any] = {"num-examples": metrics["personalised-samples"]}
    for model in ("personalised", "global", "validation"):
        samples = metrics.get(f"{model}-samples")
        if samples:
            found[f"{model}-accuracy"] = metrics[f"{model}-correct"] / samples
            found[f"{model}-loss"] = metrics[f"{model}-loss-sum"] / samples
    if "validation-accuracy" in found:
        found["validation-num-examples"] = metrics["validation-samples"]
    for key, total in metrics.items():
        if key.endswith(SUM) and (count := metrics[key[: -len(SUM)] + COUNT]):
            found[key[: -len(SUM)]] = total / count
    return found


def _numbers(context: Context) -> tuple[int, int]:
    """Return which of how many clients a node is."""
    found = [context.node_config.get(key) for key in ("partition-id", "num-partitions")]
    if not all(type(number) is int and number >= 0 for number in found) or found[0] >= found[1]:  # type: ignore[operator]
        allowed = "must have partition-id and num-partitions: --node-config 'partition-id=0 num-partitions=10'"
        raise ConfigError("node-config", dict(context.node_config), allowed)
    return cast(int, found[0]), cast(int, found[1])


# -- data and models ---------------------------------------------------------------------------------------------------


def read_data(found: Any, config: Config, client: int, model: own_models.OwnModel) -> FederatedData:
    """Return what a user's function gives as the data of one client."""
    data = found if isinstance(found, Dataset) else CustomLoader("data", [found])(config.data)
    data = replace(data, client_train=None, client_test=None, client_names=())
    if not data.has_targets or data.has_masks:
        classes = config.data.num_classes
        if not classes and not own_models.needs_classes(model):
            classes = own_models.outputs_of(model, data.input_shape)  # a client may have none of the last classes
        if classes > data.num_classes:
            data = replace(data, num_classes=classes, class_names=())
    return FederatedData.of_client(data, config.data, client, config.run.seed)


def shell_of(model: nn.Module) -> nn.Module:
    """Return a copy of a module's structure that has the same parameters and buffers."""
    arrays = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(array): array for array in arrays})


def cut_shell(model: nn.Module, head: str) -> BaseHeadModel:
    """Return a module's arrays as a model of base and head, without running it."""
    shell = shell_of(model)
    if isinstance(shell, BaseHeadModel):
        return shell
    linear = [name for name, layer in shell.named_modules() if type(layer) is nn.Linear]
    if head and head not in linear:
        raise ConfigError("head", head, "is no nn.Linear of the model")
    return models.cut_at(shell, head or (linear[-1] if linear else ""))


# -- a training function of one's own ----------------------------------------------------------------------------------


class PersonalRound:
    """One message of a strategy, in the hands of a user's function; made by :func:`personal`.

    Attributes
    ----------
    round : int
        The round, from 1.
    client : int
        The client's number.
    model : nn.Module
        The module that was given, or that was built.
    """

    def __init__(
        self, message: Message, context: Context, model: Callable[..., nn.Module] | nn.Module, own: Own, head: str,
        state_dir: str | Path | None,
    ) -> None:  # fmt: skip
        self._message, self._context, self._head, self._state_dir = message, context, head, state_dir
        self._given = config_of(message.content)
        self.round = int(self._given.get("server-round", 0))
        self._trains = message.metadata.message_type == MessageType.TRAIN
        self._objects = ExitStack()
        self.config = own.config(self._given, self._objects.enter_context(as_setting("model", self._shell)))
        self._build: Callable[[], nn.Module] | None = None
        if isinstance(model, nn.Module):
            self.model = model
        else:
            self._build = lambda: own_code.call("model", own_models.name_of(model), model, {})
            seed_model(self.config)
            self.model = self._build()
        self._needs = own_of(self.config.method, OF_TRAINING if self._trains else OF_TEST)
        if self._trains and self.config.of(PrivacySettings).on:
            self._needs.append("adds noise (dp-noise-multiplier)")
        if not self._trains and self.config.training.tune_epochs:
            self._needs.append(TUNES)
        self._fitted: tuple[ContextEngine, Payload] | None = None
        self._tested = False
        self.client, self._total = _numbers(context)
        if self.round and not own_of(self.config.method, OF_MODEL):
            self._enter()

    def _shell(self, input_shape: tuple[int, ...], num_classes: int, vocabulary: int) -> nn.Module:
        if self._build is not None:
            self._build()  # draws what it drew before: what the method adds is then drawn as on the server
        shell = shell_of(self.model)
        return with_head(shell, input_shape, num_classes, vocabulary, self._head, type(self.model).__name__)

    def _state(self) -> ClientState:
        return state_in(self._context, self._state_dir, str(self._given["state-key"]), self.client)

    def _enter(self) -> None:
        """Load what the server sent and what the client keeps into the user's model."""
        shell = cut_shell(self.model, self._head)
        self._plain = plain = models.plain_names(shell)
        split = tuple(map(str, cast(Any, self._given.get("personal", ()))))  # of the strategy, in place of the method's
        method = self.config.method

        def travels(name: str) -> bool:
            return not plain(name).startswith(split) if split else method.travels(name, shell)

        self._tied = [[plain(name) for name in names] for names in tied(shell) if travels(names[0])]
        require_tied_alike(shell, travels, method.name, plain)
        self._sharing: Sharing = Sharing(shell, travels) if split else method.sharing(shell)
        self._sharing.set_shared(from_named(self._sharing.layout, arrays_of(self._message.content), self._plain))
        if self._sharing.personal and (last := int(self._given["personal-round"])) > 0:
            self._sharing.set_personal(self._state().load(last))
        self._before = self._sharing.get_shared(), self._sharing.get_personal()

    def describe(self, data: Any) -> Message:
        """Return the reply to a query: the numbers of samples, and shapes of the shared arrays.

        A strategy with ``model`` asks before round 1.
        """
        engine, self._tested = self._made_engine(data, data), True
        question = Payload(dict(self._given), {}, {})
        question.config["in-turn"] = False
        return Message(to_content(HANDLERS["query"](engine, self.client, question)), reply_to=self._message)

    def fit(self, data: Any) -> dict[str, int | float]:
        """Train by the method's own phases on a DataLoader, Dataset or arrays (x, y); return the round's numbers.

        The model has the trained arrays afterwards: those that predict, where the method can write them as one model.
        """
        if not self._trains:
            raise ConfigError("message", self._message.metadata.message_type, "must be a message to train")
        if self.config.of(EvaluateTrainedSettings).evaluate_trained:
            raise ConfigError("evaluate-trained", True, "needs test data, which fit does not have: use client_app")
        engine = self._made_engine(data, data)
        message = flat_message(engine, self._message.content)
        reply = HANDLERS["train"](engine, self.client, message)
        self._fitted = engine, reply
        self._write_back(engine)
        return dict(reply.metrics)

    def evaluate(self, test: Any, train: Any = None) -> dict[str, int | float]:
        """Test the personalised model as the method does.

        ``train`` are the client's training samples, which methods need that adapt a model before a test.
        """
        needs = own_of(self.config.method, OF_TRAIN_DATA)
        if self.config.training.tune_epochs:
            needs.append(TUNES)
        if needs and train is None:
            raise ConfigError("train", None, f"must be the training samples: {self.config.method.name} {needs[0]}")
        engine = self._made_engine(test if train is None else train, test)
        message = flat_message(engine, self._message.content)
        found = means_of(HANDLERS["evaluate"](engine, self.client, message).metrics)
        self._tested = True
        self._write_back(engine)
        return found

    def _made_engine(self, train: Any, test: Any) -> ContextEngine:
        read = [CustomLoader("data", [found])(self.config.data) for found in (train, test)]
        x, y = read[0].x_train, read[0].y_train
        data = Dataset("data", x, y, read[1].x_train, read[1].y_train)
        own = read_data(data, self.config, self.client, self.model)
        engine = ContextEngine(self.config, own, self._total, self.client, self._state_dir)
        engine.context = self._context
        return engine

    def _write_back(self, engine: Engine) -> None:
        """Load into the user's model what predicts, where that is one model."""
        try:
            exported = self.config.method.export(engine.model)
        except NoPlainModel:
            return
        plain = models.plain_names(engine.model)
        arrays = {plain(name): array for name, array in exported.items()}
        with torch.no_grad():
            for name, target in self.model.state_dict(keep_vars=True).items():
                if name in arrays:
                    target.copy_(arrays[name])

    def close(self) -> None:
        """Keep the personal arrays of a round that the user's own loop has trained."""
        if self._fitted is not None or self._tested:
            return
        if self._needs:
            call = "fit" if self._trains else "evaluate"
            allowed = f"{self._needs[0]}, which a loop of your own does not: call {call}(…) of this object"
            raise ConfigError("method", self.config.method.name, allowed)
        if not self._trains:
            return
        shared, personal = self._sharing.get_shared(), self._sharing.get_personal()
        sent, kept = self._before
        if np.array_equal(shared, sent) and all(np.array_equal(personal[name], kept[name]) for name in personal):
            raise ConfigError("model", type(self.model).__name__, "none of its arrays changed: train this very module")
        if not all(np.isfinite(array).all() for array in (shared, *personal.values())):
            raise StateError(f"the training diverged in round {self.round}; a smaller learning rate may help")
        self._state().save(personal, self.round, int(self._given["personal-round"]))

    def reply(self, metrics: Mapping[str, int | float] | None = None) -> Message:
        """Return the reply: after training the shared arrays by name, and the metrics.

        ``num-examples``, the number of samples, has to be among them, unless :meth:`fit` has counted them.
        """
        found: dict[str, Any] = dict(metrics or {})
        if self._fitted is not None:
            engine, trained = self._fitted
            content = named_reply(engine, trained, MessageType.TRAIN)
            content["metrics"] = MetricRecord({**dict(content.metric_records["metrics"]), **found})
            return Message(content, reply_to=self._message)
        if "num-examples" not in found:
            raise ConfigError("metrics", found, "must have num-examples, the number of samples")
        content = RecordDict({"metrics": MetricRecord(found)})
        if self._trains:
            packed = self._sharing.layout.pack(self._sharing.get_shared(), self.config.run.wire_dtype)
            arrays, _ = to_named(self._sharing.layout, packed, self._plain)
            for names in self._tied:  # a strategy without the model takes them for several arrays
                found_as = next(name for name in names if name in arrays)
                arrays.update(dict.fromkeys(names, arrays[found_as]))
            content["arrays"] = arrays
        return Message(content, reply_to=self._message)


@contextmanager
def personal(
    message: Message,
    context: Context,
    model: Callable[..., nn.Module] | nn.Module,
    method: str | type[Method] | type[MethodStrategy] | None = None,
    *,
    head: str = "",
    state_dir: str | Path | None = None,
    **settings: Any,
) -> Iterator[PersonalRound]:
    """Make a Flower message a round of a personalised method, in a training or test function of one's own.

    Inside, ``model`` holds the shared arrays that the server sent and this client's own personal ones. Train it in a
    loop of your own, or call :meth:`~PersonalRound.fit` for the method's phases. Leaving keeps the personal arrays;
    :meth:`~PersonalRound.reply` packs the shared ones. A method that changes the model or has phases of its own has to
    be trained by ``fit`` and tested by ``evaluate``; one line says so otherwise.

    Inside, the global random generators of torch, NumPy and Python follow from seed, client and round; afterwards they
    are as before.

    Parameters
    ----------
    message : Message
        Of a strategy, to train or to evaluate.
    context : Context
        Flower's; personal arrays are kept in its ``state``.
    model : nn.Module, or callable
        The module, which is changed in place; or what builds it without arguments, with the strategy's ``seed``: then
        all clients begin with the same personal arrays.
    method : str, subclass of Method or strategy, optional
        By default the one that the message names.
    head : str
        Name of the layer that is the head, by default the last ``nn.Linear``.
    state_dir : str or Path, optional
        Folder of personal arrays, in place of ``context.state``.
    **settings
        Settings that the strategy does not decide, with underscores.

    Yields
    ------
    PersonalRound
        The round.

    Raises
    ------
    FedpflError
        The message is no strategy's, or the model does not fit it; in one line.

    Examples
    --------
    A function of a Flower app, whose own ``my_training`` trains a module::

        @app.train()
        def train(message, context):
            model = Net()
            with strategies.personal(message, context, model) as local:
                loss = my_training(model, loader)
            return local.reply({"train_loss": loss, "num-examples": len(loader.dataset)})

    For a strategy with ``model``, which asks before round 1::

        @app.query()
        def query(message, context):
            with strategies.personal(message, context, Net) as local:
                return local.describe(loader)
    """
    with ExitStack() as objects, own_code.global_state_kept():
        local = PersonalRound(message, context, model, Own(method, settings, objects), head, state_dir)
        kind, seed = message.metadata.message_type, local.config.run.seed
        seed_global(torch_seed(seed, f"own loop, {kind}", local.client, local.round), local.config.training.device)
        yield local
        local.close()
