"""The client's half of a method with phases: one function for a message, and an app that is nothing else."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import lru_cache, partial
from logging import WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from .. import models
from ..client.client_number import own_data_path
from ..client.engine import HANDLERS, Engine
from ..client.policy import bounded, guard
from ..client.state import ClientState
from ..core import rng, user_code
from ..core.errors import ConfigError, FedpflError, LayoutError, NoPlainModel
from ..core.metrics import COUNT, NEXT_TOKEN, SUM, TARGETS, part_of, value
from ..core.payload import UNNUMBERED, Payload, is_probe
from ..core.references import FORM
from ..core.settings import key_of
from ..data import Dataset
from ..data.datasets.python_objects import CustomLoader
from ..data.datasets.torch_samples import NOT_THE_LOADERS
from ..data.federation import FederatedData
from ..methods import Method
from ..methods.base import export_of, overridden
from ..models import user_model as own_models
from ..setup.all_settings import check_keys, code_in, functions, keys_of, tagged
from ..setup.config import Config
from ..setup.objects import as_setting, functions_as_text
from ..setup.options.evaluate_global import EvaluateTrainedSettings
from .keep import ARRAYS, MARK, STATE, ContextState, arrays_of, refused, required_folder, state_dir_of, told_by
from .loaders import batches_of, read
from .messages import (
    EXTRAS,
    SETTINGS,
    from_content,
    from_named,
    kind_of,
    others_of,
    read_settings,
    to_content,
    to_framed_content,
    to_named,
)
from .sent_settings import NOT_SENT, OF_NODES, OF_STRATEGY

if TYPE_CHECKING:  # which a node does not load
    from .strategy import MethodStrategy

logger = getLogger("flwr")

# Remarks on data that this process has made, by the run's state key and the client.
_told: set[tuple[str, int, str]] = set()
# Engines that a process keeps: one for each client and its data.
MAX_ENGINES = 8
# What a method may do in a test for which it needs the client's training samples.
OF_TRAIN_DATA = {
    "prepare": "prepares the model with them", "personalised": "may predict by them", "adaptation": "adapts to them",
}  # fmt: skip

Data = Callable[[Context], Any]


def fit(
    message: Message,
    context: Context,
    *,
    model: Callable[..., nn.Module] | nn.Module | str,
    data: Any,
    keys: Sequence[str] = (),
    method: str | type[Method] | type[MethodStrategy] | None = None,
    head: str = "",
    state_dir: str | Path | None = None,
    **settings: Any,
) -> Message:
    """Answer a message of a strategy with ``model=``, by the method's own phases: the body of a ClientApp's functions.

    The same call answers ``query``, which such a strategy asks before round 1, ``train`` and ``evaluate``.

    Parameters
    ----------
    message, context : Message, Context
        As Flower hands them to the function.
    model : callable, nn.Module or str
        As in the strategy. A module then holds what predicts, where the method can write it as one model.
    data : DataLoader, Dataset of torch, arrays (x, y), ``fedpfl.Dataset``, or a pair of these
        The client's samples: those that this message needs, to train or to test with, or both as (train, test). A
        DataLoader's batch size holds unless the strategy sets one; samples come in a new order in each epoch, also
        with ``shuffle=False``, and random transforms are drawn again for each.
    keys : sequence of str
        Which two entries of batches that are dictionaries are x and y; by default the only two that there are.
    method : str, subclass of Method or strategy, optional
        By default the one that the strategy names. A method of one's own has to be given.
    head : str
        As in the strategy.
    state_dir : str or Path, optional
        Folder of personal arrays, by default that of the mod :func:`keep` around the function, else ``Context.state``.
    **settings
        Settings that the strategy does not decide, with underscores, such as ``device="cuda"``; ``loss`` may be a
        function. Another value than the strategy's is refused.

    Returns
    -------
    Message
        The reply. What is wrong is told in it, in one line.

    Examples
    --------
    For the strategy ``FedRep(model=Net)``::

        @app.train()
        def train(message, context):
            return fit(message, context, model=Net, data=trainloader)

        @app.query()
        def query(message, context):
            return fit(message, context, model=Net, data=trainloader)

        @app.evaluate()
        def evaluate(message, context):
            return fit(message, context, model=Net, data=(trainloader, testloader))
    """
    with ExitStack() as objects, user_code.global_state_kept():
        try:
            client = _Client(method, model, head, state_dir_of(state_dir), settings, keys, objects)
            return client.answer(message, context, lambda: data, user_code.global_state_kept)
        except FedpflError as error:
            return refused(message, error)


def client_app(
    method: str | type[Method] | type[MethodStrategy] | None = None,
    *,
    model: Callable[..., nn.Module] | nn.Module | str,
    data: Data,
    keys: Sequence[str] = (),
    head: str = "",
    state_dir: str | Path | None = None,
    mods: list[Any] | None = None,
    **settings: Any,
) -> ClientApp:
    """Return a ClientApp whose functions are :func:`fit`, for both loops of a strategy.

    Parameters
    ----------
    method : str, subclass of Method or strategy, optional
        The method that the client takes part in, by default the one that the strategy names. A method of one's own has
        to be given.
    model : callable, nn.Module or str
        As in the strategy.
    data : callable, Context → data
        Gets Flower's ``Context``, whose ``node_config`` has ``partition-id`` and ``num-partitions``, or the path of the
        node's data, and returns what :func:`fit` takes. Samples that are not divided are cut by ``test-fraction``.
    keys, head : sequence of str, str
        As in :func:`fit`.
    state_dir : str or Path, optional
        Folder of personal arrays; without it they are in ``Context.state`` and are lost when the SuperNode restarts.
    mods : list, optional
        Flower's mods, around the training: what they see and change is what leaves the client, in both loops.
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
    answering = _MessageHandler(method, model, data, keys, head, required_folder(state_dir), bool(mods), settings)
    app = ClientApp()
    app.query()(answering.answer)
    app.train(mods=mods)(answering.answer)
    app.evaluate()(answering.answer)
    return app


class _MessageHandler:
    """The answer of :func:`client_app` to a message."""

    def __init__(self, *made_of: Any) -> None:
        self._made_of = made_of
        method, model, self._data, keys, head, state_dir, mods, settings = made_of
        self._client = _Client(method, model, head, state_dir, settings, keys, ExitStack(), mods=mods, cut=True)
        self._name = own_models.name_of(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as what it was made of; Flower's ``run_simulation`` pickles an app."""
        return _MessageHandler, self._made_of

    def answer(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        try:
            return self._client.answer(
                message, context, lambda: user_code.guarded("data", self._name, self._data)(context)
            )
        except FedpflError as error:
            return refused(message, error)


class _Client:
    """A client of a strategy, which answers by an engine of its model and data."""

    def __init__(
        self, method: Any, model: own_models.OwnModel, head: str, state_dir: str | Path | None,
        settings: Mapping[str, Any], keys: Sequence[str], objects: ExitStack, mods: bool = False, cut: bool = False,
    ) -> None:  # fmt: skip
        self._model, self._head, self._state_dir, self._keys = model, head, state_dir, tuple(keys)
        self._mods, self._cut, self._objects = mods, cut, objects
        # A strategy's class names that of its method.
        cls = method if method is None or isinstance(method, str) else getattr(method, "method", method)
        text = cls if isinstance(cls, (str, type(None))) else objects.enter_context(as_setting("method", cls))
        self._settings = {key.replace("_", "-"): value for key, value in settings.items()}
        for key in sorted(functions() - tagged("server")):
            if key in self._settings:
                self._settings[key] = functions_as_text(key, self._settings[key], partial(self._text_of, key))
        if text is not None:
            self._settings["method"] = text
        check_keys(self._settings)
        self._method = "" if text is None else Config.parse({"method": text}).method.name
        self._require_of_clients()
        built = model if isinstance(model, str) and not head else own_models.under_its_name(model, self._built)
        self._text = built if isinstance(built, str) else objects.enter_context(as_setting("model", built))
        self._engines: OrderedDict[tuple[Any, ...], _Engine] = OrderedDict()

    def _text_of(self, key: str, thing: object, earlier: str) -> str:
        return self._objects.enter_context(as_setting(key, thing))

    def _require_of_clients(self) -> None:
        """Refuse settings that have no effect on a client, or that the strategy decides for all of them."""
        usual = {*keys_of()}
        for key, named in sorted(self._settings.items()):
            if key in ("method", "model"):
                continue
            if key == "num-clients" or key in OF_NODES:
                instead = "node-config has num-partitions" if key == "num-clients" else "data= hands samples over"
                raise ConfigError(key, named, f"has no effect here: {instead}")
            if key in OF_STRATEGY or (key not in usual and key not in functions()):
                raise ConfigError(key, named, "is the strategy's to decide: give it there")

    def _built(self, input_shape: tuple[int, ...], num_classes: int, vocabulary: int) -> nn.Module:
        return own_models.made(self._model, input_shape, num_classes, vocabulary, self._head)

    def answer(self, message: Message, context: Context, data: Callable[[], Any], kept: Any = None) -> Message:
        """Answer a message, in the form in which it came; an error is a ``FedpflError``."""
        kind, told = kind_of(message), told_by(message.content)
        named = told is not None and "server-round" in told
        payload = Payload() if named else from_content(message.content)
        if is_probe(payload):
            return Message(to_content(Payload()), reply_to=message)
        config = cast("dict[str, Any]", told if named else payload.config)
        client = self._number(context, config, kind)
        if client is None:
            total = int(read_settings(config.get(SETTINGS, "{}")).get("num-clients", 0))
            if not total:
                problem = "must have partition-id and num-partitions, or the strategy num_clients=, the number of nodes"
                raise ConfigError("node-config", dict(context.node_config), problem)
            return Message(to_content(Payload({UNNUMBERED: True, "num-clients": total})), reply_to=message)
        engine = self._engine(config, client, context, data, kind)
        engine.context = context
        if not named:
            if kind == MessageType.QUERY:
                payload.config["in-turn"] = "ray" not in sys.modules
            with bounded():
                reply = HANDLERS[kind](engine, client[0], payload)
            if kind == MessageType.QUERY:
                reply.config.update({"in-turn": payload.config["in-turn"], "mods": self._mods})
                if engine.state_dir is None:  # what a restarted node no longer has cannot tell it from others
                    reply.config.pop("identity", None)
            return Message((to_content if self._mods else to_framed_content)(reply), reply_to=message)
        engine.use_model_of(client[0])
        flat = flat_message(engine, message.content, config)
        with bounded():
            reply = HANDLERS[kind](engine, client[0], flat)
        if isinstance(self._model, nn.Module) and kind != MessageType.QUERY:
            write_back(engine, self._model)
        content = named_reply(engine, reply, kind, str(config.get("weighted-by", "num-examples")))
        content[MARK] = ConfigRecord({"by": "fit"})
        return Message(content, reply_to=message)

    def _number(self, context: Context, told: Mapping[str, Any], kind: str) -> tuple[int, int] | None:
        """Return a node's number and that of clients; None before the server has told one that has a path alone."""
        partition = [context.node_config.get(key) for key in ("partition-id", "num-partitions")]
        if (partition == [None, None] and own_data_path(context.node_config)) or not context.node_config:
            record = context.state.config_records.get(f"{STATE}{told.get('state-key')}/number")
            number = told.get("client", None if record is None else record["client"])
            total = read_settings(told.get(SETTINGS, "{}")).get("num-clients", 0)
            if number is None and kind == MessageType.QUERY:
                return None
            if type(number) is not int or not 0 <= number < total:
                raise ConfigError("client", number, f"must be a number below num_clients = {total}")
            context.state[f"{STATE}{told['state-key']}/number"] = ConfigRecord({"client": number})
            return number, total
        if not all(type(number) is int and number >= 0 for number in partition) or partition[0] >= partition[1]:  # type: ignore[operator]
            message = "must have partition-id and num-partitions: --node-config 'partition-id=0 num-partitions=10'"
            raise ConfigError("node-config", dict(context.node_config), message)
        return cast("tuple[int, int]", tuple(partition))

    def _engine(
        self, told: Mapping[str, Any], client: tuple[int, int], context: Context, data: Callable[[], Any], kind: str
    ) -> _Engine:
        key = (client, told.get(SETTINGS), context.run_id)
        if key not in self._engines:
            while len(self._engines) >= MAX_ENGINES:
                self._engines.popitem(last=False)
            self._engines[key] = self._made(told, client, data(), kind)
        self._engines.move_to_end(key)
        return self._engines[key]

    def _made(self, told: Mapping[str, Any], client: tuple[int, int], data: Any, kind: str) -> _Engine:
        config = self.config(told, batches_of(data))
        if kind == MessageType.TRAIN and not self._cut and config.of(EvaluateTrainedSettings).evaluate_trained:
            raise ConfigError("evaluate-trained", True, "needs test data, which fit does not have: use client_app")
        key = str(told.get("state-key", ""))
        return _Engine(config, self._read(config, client[0], data, kind, key), client, self._state_dir)

    def _read(self, config: Config, client: int, data: Any, kind: str, key: str) -> FederatedData:
        """Read a client's data; a pair is what trains and what tests."""
        said: dict[str, None] = {}
        rng.seed_global(config.run.seed)  # of which samplers draw
        pair = isinstance(data, tuple) and len(data) == 2 and not hasattr(data[0], "__array__")
        if isinstance(data, Dataset):
            dataset = data
        elif self._cut or pair or (isinstance(data, tuple) and len(data) == 4):
            source = tuple(read(part, self._keys, said) for part in data) if pair else read(data, self._keys, said)
            dataset = CustomLoader("data", [source])(config.data, config.run.seed)
        else:
            if kind == MessageType.EVALUATE and (needs := overridden(config.method, OF_TRAIN_DATA) or _tuned(config)):
                message = f"must be a pair (train, test): {config.method.name} {needs[0]}"
                raise ConfigError("data", type(data).__name__, message)
            dataset = CustomLoader("data", [read(data, self._keys, said)])(config.data, config.run.seed)
            x, y = dataset.x_train, dataset.y_train
            # What this message does not need is empty.
            dataset = replace(dataset, x_test=x[:0], y_test=y[:0])
            if kind == MessageType.EVALUATE:
                dataset = replace(dataset, x_test=x, y_test=y)
        held = NOT_THE_LOADERS.format(config.training.batch_size)  # which is the loader's, see batches_of
        dataset = replace(dataset, remarks=tuple(remark for remark in dataset.remarks if remark != held))
        for remark in (*said, *dataset.remarks):
            if (key, client, remark) not in _told:  # fit reads its data again for each message
                _told.add((key, client, remark))
                logger.log(WARNING, "fedpfl: data: %s", remark)
        dataset = replace(dataset, client_train=None, client_test=None, client_names=())
        if dataset.label_kind != TARGETS:
            classes = config.data.num_classes
            if not classes and not own_models.needs_classes(self._model):
                # A client may have none of the last classes.
                classes = own_models.outputs_of(self._model, dataset.input_shape, dataset.vocabulary)
            if classes > dataset.num_classes:
                vocabulary = classes if dataset.label_kind == NEXT_TOKEN else dataset.vocabulary
                dataset = replace(dataset, num_classes=classes, class_names=(), vocabulary=vocabulary)
        return FederatedData.of_client(dataset, config.data, client, config.run.seed)

    def config(self, told: Mapping[str, Any], of_loader: Mapping[str, Any]) -> Config:
        """Return the settings of a message: the strategy's, which may name no code and no place, and one's own."""
        sent = read_settings(told.get(SETTINGS, "{}"))
        name = sent.pop("method", self._method)
        if not name:
            raise ConfigError("method", None, "must be given: the strategy has a method of its own")
        if self._method and name != self._method:
            raise ConfigError("method", self._method, f"the strategy's method is {name}")
        sent.pop("num-clients", None)
        refusable = [key for key in sent if key in NOT_SENT or code_in({key: sent[key]})]
        if refusable:
            raise ConfigError(refusable[0], sent[refusable[0]], "a strategy cannot set this on a client")
        for key in sorted(sent.keys() & self._settings.keys()):
            if sent[key] != self._settings[key]:
                raise ConfigError(key, self._settings[key], f"the strategy sets {sent[key]!r}: give it there alone")
        values = {"method": name, **of_loader, **sent, **self._settings, "model": self._text, "num-clients": 0}
        check_keys(values)
        if (owner := guard()) is not None:
            owner.check(values, "", sent.keys())
        config = Config.parse(values)
        for reason, keys in config.idle(dataset=FORM, partitioner="natural"):
            if named := [key for key in keys if key in self._settings]:
                raise ConfigError(named[0], values[named[0]], f"has no effect here with {reason}")
        return config


def _tuned(config: Config) -> list[str]:
    return ["adapts the model before a test (tune-epochs)"] if config.training.tune_epochs else []


class _Engine(Engine):
    """An engine of one client, which keeps its arrays in Flower's ``Context.state`` unless there is a folder."""

    def __init__(
        self, config: Config, data: FederatedData, client: tuple[int, int], state_dir: str | Path | None
    ) -> None:
        self.state_dir = state_dir
        self.context: Context | None = None
        if state_dir is None:  # models are files
            if config.run.device_models == "always":
                raise ConfigError("device-models", "always", "needs state_dir, a folder on each node: give it there")
            config = replace(config, run=replace(config.run, device_models="never"))
        super().__init__(config, data, client[1], of_one_client=True, client=client[0])

    def state_of(self, key: str, client: int) -> ClientState:
        """Return the store of the client's arrays."""
        assert self.context is not None
        if self.state_dir is None:
            return ContextState(self.context, key, client)
        return ClientState(self.state_dir, key, client)


# -- messages ----------------------------------------------------------------------------------------------------------


def flat_message(engine: Engine, content: RecordDict, told: Mapping[str, Any]) -> Payload:
    """Return a message with named arrays as the engine takes it."""
    extras = others_of(content.array_records.get(EXTRAS))
    engine.sharing.accept(engine.extras.read(extras, "client"))
    layout = engine.sharing.layout
    if not told.get("phases"):
        message = "must be given to the strategy, whose nodes then train by fit or client_app"
        raise ConfigError("model", None, message)
    _require_settings_of_round(type(engine.config.method), told)
    if told.get("frozen", "") != layout.frozen:
        raise LayoutError("the frozen arrays differ from the server's: the server has another model or other weights")
    _, record = arrays_of(content, str(told.get(ARRAYS, "arrays")))
    shared = from_named(layout, record, models.plain_names(engine.model))
    arrays = {**extras, **layout.pack(shared, engine.config.run.wire_dtype)}
    return Payload({**told, "layout": layout.to_text()}, {}, arrays)


@lru_cache
def _keys_by_word(method: type[Method]) -> dict[str, str]:
    """Return the settings that a message's config may name, by their keys as they are and with underscores.

    A field's name alone, such as ``models``, may be what the method sends.
    """
    keys = [*keys_of(), *(key_of(field, method.name) for field in fields(method.Settings))]
    return {**{key.replace("-", "_"): key for key in keys}, **{key: key for key in keys}}


def _require_settings_of_round(method: type[Method], told: Mapping[str, Any]) -> None:
    """Refuse a message whose config names a setting that is not the round's, as a hook may have written it there."""
    keys: Mapping[str, str] = _keys_by_word(method)  # type: ignore[arg-type]  # classes are hashable
    called = {name: keys[name] for name in told if name in keys}
    if not called:
        return
    sent = read_settings(told.get(SETTINGS, "{}"))
    for name, key in called.items():
        if sent.get(key) != told[name]:
            message = "has no effect in a message: give it to the strategy, or for a round in train_config"
            raise ConfigError(name, told[name], message)


def named_reply(engine: Engine, reply: Payload, kind: str, weight: str) -> RecordDict:
    """Return the engine's answer as a message with named arrays, and numbers that have a mean."""
    metrics: dict[str, Any] = dict(reply.metrics)
    if kind == MessageType.EVALUATE:
        return RecordDict({"metrics": MetricRecord(means_of(metrics, weight))})
    metrics = _with_weight(metrics, weight, metrics["train-samples"])
    if reply.arrays.get("shared") is None:
        arrays, extras = ArrayRecord(), ArrayRecord({name: Array(array) for name, array in reply.arrays.items()})
    else:
        arrays, extras = to_named(engine.sharing.layout, reply.arrays, models.plain_names(engine.model))
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    if extras:
        content[EXTRAS] = extras
    return content


def means_of(metrics: Mapping[str, int | float], weight: str = "num-examples") -> dict[str, Any]:
    """Return the numbers of a test as means: accuracy and loss of each model that was tested."""
    means: dict[str, Any] = {}
    for model in ("personalised", "global", "validation"):
        samples = metrics.get(f"{model}-samples")
        if samples:
            means[f"{model}-accuracy"] = metrics[f"{model}-correct"] / samples
            means[f"{model}-loss"] = metrics[f"{model}-loss-sum"] / samples
    if "validation-accuracy" in means:
        means[f"validation-{weight}"] = metrics["validation-samples"]
    for key, total in metrics.items():
        part = part_of(key)
        if part is not None and part.is_sum and (count := metrics[key[: -len(SUM)] + COUNT]):
            means[key[: -len(SUM)]] = value(part.metric, total, count)
    return _with_weight(means, weight, metrics["personalised-samples"])


def _with_weight(metrics: Mapping[str, Any], weight: str, samples: int | float) -> dict[str, Any]:
    """Return metrics with the number by which a reply counts in front: it may have no other number's name."""
    if metrics.get(weight, samples) != samples:
        raise ConfigError("weighted_by_key", weight, "is another number of fit's, whose replies count by their samples")
    return {weight: samples, **metrics}


def write_back(engine: Engine, model: nn.Module) -> None:
    """Load into the user's model what predicts, where that is one model."""
    try:
        exported = export_of(engine.config.method, engine.model)
    except NoPlainModel:
        return
    plain = models.plain_names(engine.model)
    arrays = {plain(name): array for name, array in exported.items()}
    with torch.no_grad():
        for name, target in model.state_dict(keep_vars=True).items():
            if name in arrays:
                target.copy_(arrays[name])
