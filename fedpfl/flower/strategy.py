"""Every method as a Flower strategy.

:class:`MethodStrategy` translates between Flower's messages and the method's rule; each method's class is made by
:func:`of`. A round is the one of :class:`~fedpfl.engine.rounds.RoundLoop`, whose halves the hooks call.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from logging import INFO, WARNING, getLogger
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from .. import models
from ..core import custom
from ..core.claims import Bounds, problem, require_metrics
from ..core.errors import ConfigError, LayoutError, did_you_mean, printable
from ..core.names import shape_of
from ..core.payload import Payload
from ..core.rng import generator
from ..core.server_view import Client
from ..core.settings import Value, key_of
from ..core.sharing import Sharing
from ..core.vectors import without_negative_variances
from ..engine.agreement import agree
from ..engine.listener import Listener
from ..engine.log import Log
from ..engine.options.norm_limit import limit_of
from ..engine.replies import Expected
from ..engine.rounds import RoundFailed, RoundLoop
from ..engine.server_run import run_federation
from ..engine.transport import EVALUATE, TRAIN, Request
from ..methods import Method, methods
from ..models import user_model as own_models
from ..models.skeleton import skeleton
from ..results.record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule
from ..setup.all_settings import check_keys, unused
from ..setup.assembly import extras_of, make_rule, plain_model
from ..setup.config import Config
from ..setup.objects import as_setting
from .flowers_loop import mean_of_metrics, require_listeners, require_rounds, require_settings, tell_unsent
from .grid_transport import FlowerTransport
from .messages import SETTINGS, numpy_of
from .named_arrays import EXTRAS, NOT_SENT, Names, from_named, others_of, settings_text, to_named

logger = getLogger("flwr")

# What a method may do for which shared arrays alone are not enough.
OF_ARRAYS = {"build": "changes the model", "sharing": "shares parts of arrays"}

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class KnownTask(NamedTuple):
    """What a strategy knows before its first message."""

    clients: list[Client]
    nodes: dict[int, int]  # Flower's id of the node of each client
    model: nn.Module
    sharing: Sharing
    counts: bool  # whether the clients' numbers of samples are known


class MethodStrategy(Strategy):
    """The base of all strategies; ``fedpfl.strategies`` has one class for each method.

    There are two ways to run it. With ``initial_arrays``, :meth:`start` is Flower's own loop over the four hooks below,
    for any ClientApp: ``fedpfl.strategies.client_app``, a function that uses ``fedpfl.strategies.personal``, or an app
    that knows nothing of fedpfl. Without them, :meth:`start` is fedpfl's loop, for clients that are fedpfl's own: it
    writes a run folder, sends again what a device has lost, keeps deadlines and resumes. A round has the same bits both
    ways.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key, \
arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As in Flower's ``FedAvg``; a metric that only some nodes send has the mean of these. Which nodes are drawn
        follows from ``seed`` and the round. But for ``fraction_train`` they are for Flower's loop alone.
    model : callable, nn.Module or str, optional
        Builds the model, and may take ``input_shape`` and ``num_classes``; or a module; or a name of ``fedpfl
        models``. The clients are then asked for their task before round 1, which ``client_app`` answers, and a query
        function with ``describe`` of ``personal``. Without it the strategy knows the initial arrays alone, which is
        enough for a method that changes no model and needs nothing from clients but their shared arrays.
    head : str
        Name of the layer that is the head, by default the last ``nn.Linear``.
    personal : sequence of str
        Beginnings of the names of arrays that stay on the client, in place of the method's own choice; for strategies
        without ``model``, whose clients train in loops of their own.
    listeners : sequence of Listener
        Follow the rounds. In Flower's loop ``done.line`` has the round and its clients alone, nothing ends a run, and
        listeners with ``run_started`` or ``run_ended``, such as trackers, are refused.
    **settings
        The method's settings, and those that all methods have, with underscores: ``local_epochs=2``. They are sent to
        clients of fedpfl, but for functions, which are the clients' own.

    Raises
    ------
    ConfigError
        A setting is not allowed, or has no effect in the loop that is started; in one line.
    """

    method: ClassVar[type[Method]]

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        *,
        model: Callable[..., nn.Module] | nn.Module | str | None = None,
        head: str = "",
        personal: Sequence[str] = (),
        listeners: Sequence[Listener] = (),
        **settings: Any,
    ) -> None:
        for key, share in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0 <= share <= 1:
                raise ConfigError(key, share, "must be at least 0 and at most 1")
        if isinstance(personal, str):
            raise ConfigError("personal", personal, f"must be a sequence of beginnings of names: ({personal!r},)")
        if personal and model is not None:
            raise ConfigError("personal", personal, "cannot be combined with model, of which the method decides")
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = min_train_nodes if fraction_train else 0
        self.min_evaluate_nodes = min_evaluate_nodes if fraction_evaluate else 0
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key, self.arrayrecord_key = weighted_by_key, arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or mean_of_metrics
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or mean_of_metrics
        self.model, self.head, self.personal = model, head, tuple(personal)
        self.listeners = list(listeners)
        self.folder: RunFolder | None = None
        self._objects = ExitStack()  # Python objects that settings name, for as long as the strategy lives
        self.values = self._by_key(settings)
        self.config = Config.parse(self.values)
        self.state_key = secrets.token_hex(8)
        self._loop: RoundLoop | None = None
        self._told = False  # whether Flower hands the settings to the clients
        self._initial = ArrayRecord()
        self._split: tuple[nn.Module, Sharing] | None = None
        self._arrays: ArrayRecord | None = None  # what the last round made
        self._knows_rounds = "num-server-rounds" in self.values  # or `start` says how many there are
        self._strangers: set[int] = set()
        self._sent: dict[int, tuple[Client, Message]] = {}

    @classmethod
    def of_run(cls, run_config: Mapping[str, Value]) -> MethodStrategy:
        """Return the strategy of a run of fedpfl's own app, with the settings that Flower hands to the ServerApp."""
        self = cls()
        self.values, self.config = dict(run_config), Config.parse(run_config)
        self._told = True
        return self

    def _by_key(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by their keys: a method's own have its name in front."""
        name = self.method.name
        own = {field.name: key_of(field, name) for field in fields(self.method.Settings)}
        text = name if _is_built_in(self.method) else self._as_setting("method", self.method)
        values = {"method": text, "num-clients": 0, "partitioner": "auto"}
        if self.fraction_train:
            values["fraction-train"] = self.fraction_train
        if self.model is not None:
            made = self._built if self.head else self.model  # a class of the user's is the same one in a resumed run
            values["model"] = made if isinstance(made, str) else self._as_setting("model", made)
        texts = {field.name for field in fields(self.method.Settings) if isinstance(field.default, str)}
        for key, value in settings.items():
            number = key in texts and type(value) in (int, float)  # such as tau=0.5, which may be "0.25,inf", too
            values[own.get(key, key.replace("_", "-"))] = str(value) if number else value
        try:
            check_keys(values)
        except ConfigError as error:
            key = error.key.replace("-", "_")
            hint = did_you_mean(key, sorted(own))
            if key not in settings or not hint:
                raise
            raise ConfigError(key, error.value, f"{name} has no such setting{hint}") from None
        return values

    def _as_setting(self, kind: str, thing: object) -> str:
        return self._objects.enter_context(as_setting(kind, thing))

    # -- Flower's hooks ----------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log what the method shares, and how nodes are drawn."""
        logger.log(INFO, "\t├──> %s: shares %s", self.method.name, self.method.shares)
        if self.model is None and self.method.schedule is not Method.schedule:
            words = "\t├──> %s trains in phases of its own: a ClientApp without fit(…) of personal(…) has to do so"
            logger.log(INFO, words, self.method.name)
        logger.log(
            INFO, "\t└──> nodes: %.2f to train (at least %d), %.2f to evaluate (at least %d), %d available",
            self.fraction_train, self.min_train_nodes, self.fraction_evaluate, self.min_evaluate_nodes,
            self.min_available_nodes,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which nodes train: shared arrays by name, ``server-round``, the method's extras."""
        self._sent = {}
        if not self.fraction_train:
            return []
        loop = self._begun(grid, arrays)
        loop.round = Round(server_round)
        share = 1.0 if server_round == 1 and loop.rule.starts_with_all else self.fraction_train
        chosen = self._draw(grid, server_round, share, self.min_train_nodes, "clients")
        loop.begin(server_round, chosen)
        return self._messages(loop.requests(chosen, server_round, TRAIN), config, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies by the method's rule; return the shared arrays by name, and the mean metrics."""
        loop = self._loop
        if loop is None or not self._sent:
            return None, None
        contents: dict[int, RecordDict] = {}
        try:
            loop.combine(server_round, self._in_order(replies, contents))
        except RoundFailed as error:
            logger.log(WARNING, "fedpfl: %s", error)
            return None, None
        self._tell_failures(loop)
        counted = [contents[client] for client in sorted(loop.round.trained)]
        for content in counted:
            self._keep_exact(content)
        loop.round.line = {"round": server_round, "clients": sorted(loop.round.trained)}
        for listener in self.listeners:
            listener.round_ended(loop.rule, loop.round, {})
        self._arrays = self._named(loop.rule)
        return self._arrays, self.train_metrics_aggr_fn(counted, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which nodes test their personalised models."""
        self._sent = {}
        if not self.fraction_evaluate or not self.config.run.evaluates_in(server_round):
            return []
        loop = self._begun(grid, arrays)
        loop.round.failed = {}
        chosen = self._draw(grid, server_round, self.fraction_evaluate, self.min_evaluate_nodes, "evaluated clients")
        return self._messages(loop.requests(chosen, server_round, EVALUATE), config, server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the nodes' metrics, weighted by ``weighted_by_key``."""
        loop = self._loop
        if loop is None or not self._sent:
            return None
        contents: dict[int, RecordDict] = {}
        for client, reply in self._in_order(replies, contents, trained=False):
            wrong, _ = loop.expected.examine(EVALUATE, client, reply.metrics)
            if wrong:
                loop.fail(client, wrong)
                del contents[client.id]
        self._tell_failures(loop)
        counted = [contents[client] for client in sorted(contents)]
        return self.evaluate_metrics_aggr_fn(counted, self.weighted_by_key) if counted else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run all rounds and return Flower's ``Result``, whose ``arrays`` are the shared ones by name.

        With ``initial_arrays`` (a state dict of the plain model; empty: the model's own) this is Flower's loop. The
        strategy sends only the shared arrays among them; each client begins with its own personal arrays. If they are
        the arrays of this strategy's last result, the clients keep their personal arrays. Otherwise they start anew.

        Without ``initial_arrays`` this is fedpfl's loop, for clients of fedpfl's own app or of ``client_app``. Then
        ``folder`` is the run's folder, and ``evaluate_fn`` is called after each round.

        Some methods send each client other arrays. Their ``Result.arrays`` are the mean over the clients.
        """
        run = replace(self.config.run, num_server_rounds=num_rounds)
        self.config = replace(self.config, run=run)
        if initial_arrays is not None:
            self._knows_rounds = True
            if initial_arrays is self._arrays:
                self._text = settings_text(self._sent_settings())
            else:
                self._loop, self.state_key = None, secrets.token_hex(8)
            return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if not self.fraction_train:
            raise ConfigError("fraction_train", 0.0, "must be above 0 in fedpfl's own loop")
        _, _, *flowers = inspect.signature(MethodStrategy.__init__).parameters.values()  # without self, fraction_train
        for argument in flowers:
            of_flower, value = argument.kind is argument.POSITIONAL_OR_KEYWORD, getattr(self, argument.name, None)
            if of_flower and value not in (argument.default, mean_of_metrics):
                allowed = "has no effect in fedpfl's own loop, which initial_arrays would replace"
                raise ConfigError(argument.name, value, allowed)
        if not self._told:
            tell_unsent(self.values)
        if train_config or evaluate_config:
            allowed = "cannot be sent in fedpfl's own loop; give settings to the strategy"
            raise ConfigError("train_config", dict(train_config or evaluate_config or {}), allowed)
        self.config = replace(self.config, run=replace(run, round_timeout=float(timeout)))
        kept = _Kept(evaluate_fn, self._plain_names)
        transport = FlowerTransport(grid, "" if self._told else settings_text(self._sent_settings()))
        following = [Log(num_rounds), *self.listeners, kept]
        self.folder = run_federation(transport, self.config, following, unused(self.values, self.method.name))
        return kept.result

    def shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return those of a state dict's arrays that the method shares; for a strategy without ``model``.

        Wrappers of Flower's that compare replies with the initial arrays, as those for differential privacy do, are
        started with these.
        """
        model, sharing = self._split = self._from_arrays(arrays)
        plain = models.plain_names(model)
        return ArrayRecord({plain(name): arrays[plain(name)] for name in sharing.layout.names})

    # -- before round 1 ----------------------------------------------------------------------------------------------

    def _begun(self, grid: Grid, arrays: ArrayRecord) -> RoundLoop:
        """Return the loop whose rounds the hooks run, with the arrays that Flower hands over."""
        if self._loop is None:
            self._begin(grid, arrays)
        else:
            self._take(self._loop.rule, arrays)
        assert self._loop is not None
        return self._loop

    def _begin(self, grid: Grid, arrays: ArrayRecord) -> None:
        require_settings(self.config, self.model is not None)
        require_listeners(self.listeners)
        if not self._knows_rounds:
            require_rounds(self.config)
        tell_unsent(self.values)
        self._initial, self._text = arrays, settings_text(self._sent_settings())
        if self.model is None:
            task = self._task_of_arrays(grid, arrays)
        else:
            run = replace(self.config.run, model=self._as_setting("model", self._built))
            self.config = replace(self.config, run=run)
            task = self._task_of_clients(grid)
        self._plain: Names = models.plain_names(task.model)
        self._nodes, self._counts = task.nodes, task.counts
        rule = make_rule(self.config, task.clients, task.sharing)
        extras = extras_of(self.config, task.model, task.sharing)
        # Arrays that are no floats, such as BatchNorm's counts: no mean is made of them.
        shares = self._is_shared(task.model)
        names = {self._plain(name): name for name in task.model.state_dict()}
        self._exact = {
            name: array for name, array in arrays.items()
            if self.model is None and name in names and shares(names[name]) and names[name] not in task.sharing.shared
        }  # fmt: skip
        self._tell_personal(task.model, shares)
        following = [limit_of(self.config, extras), *self.listeners]
        self._loop = RoundLoop(rule, self.config.run, self.state_key, extras, following)
        self._loop.expected = Weighted(key=self.weighted_by_key, most=self.config.run.max_client_samples)

    def _tell_personal(self, model: nn.Module, shares: Callable[[str], bool]) -> None:
        """Log which arrays stay on the clients, and a head that nobody has named."""
        shared = {name: shares(name) for name in model.state_dict()}
        if names := [self._plain(name) for name, is_shared in shared.items() if not is_shared]:
            shown = printable(", ".join(names), 500)
            logger.log(INFO, "fedpfl: personal, each client begins with its own: %s", shown)
        head, base = (
            {shared[name] for name in shared if name.startswith("head.") == of_head} for of_head in (True, False)
        )
        if self.model is None and not self.head and not self.personal and head.isdisjoint(base) and head:
            words = "fedpfl: %r is taken as the head, the last layer that may be linear: name it by head="
            logger.log(WARNING, words, model.head_path)

    def _is_shared(self, model: nn.Module) -> Callable[[str], bool]:
        """Return what decides by name whether an array is shared."""
        if self.personal:
            plain = models.plain_names(model)
            return lambda name: not plain(name).startswith(self.personal)
        return lambda name: self.config.method.travels(name, model)

    def _require_only_arrays(self) -> None:
        """Refuse a method that needs more of a client than its shared arrays; each client is then one of fedpfl."""
        if needs := needs_of(self.config.method):
            what = f"needs more of a client than shared arrays: it {' and '.join(needs)}"
            use = "give model=, and use strategies.client_app or strategies.personal on the clients"
            raise ConfigError("model", None, f"{self.method.name} {what}; {use}")

    def _from_arrays(self, arrays: ArrayRecord) -> tuple[nn.Module, Sharing]:
        self._require_only_arrays()
        if not arrays:
            raise ConfigError("initial_arrays", {}, "must be the state dict of the model")
        if self._split is not None:  # the head was found before the personal arrays were left out
            model, sharing = self._split
            sharing.set_shared(from_named(sharing.layout, arrays, models.plain_names(model)))
            return model, sharing
        found = {name: numpy_of(name, array) for name, array in arrays.items()}
        for name, array in found.items():
            if array.dtype.kind == "c" or array.dtype == np.float64:
                allowed = f"array {name!r} is {array.dtype}; what is shared travels as float32"
                raise ConfigError("initial_arrays", name, allowed)
        model = skeleton(found, self.head)
        if self.personal and (unknown := [p for p in self.personal if not any(n.startswith(p) for n in arrays)]):
            allowed = f"no array begins like this; the arrays are {', '.join(arrays)}"
            raise ConfigError("personal", unknown[0], printable(allowed, 500))
        return model, Sharing(model, self._is_shared(model))

    def _task_of_arrays(self, grid: Grid, arrays: ArrayRecord) -> KnownTask:
        """Return the task of clients of which nothing is known but that they take these arrays."""
        return KnownTask(*self._by_node(grid), *self._from_arrays(arrays), counts=False)

    def _task_of_clients(self, grid: Grid) -> KnownTask:
        """Ask the clients for their task."""
        transport = FlowerTransport(grid, self._text)
        agreed = agree(self.config, transport.find_clients(self.config, self.state_key))
        return KnownTask(agreed.clients, transport.nodes, agreed.model, agreed.sharing, counts=True)

    def _by_node(self, grid: Grid) -> tuple[list[Client], dict[int, int]]:
        """Return the nodes that are there as clients, numbered by their ids."""
        wanted = max(self.min_available_nodes, self.min_train_nodes, self.min_evaluate_nodes)
        nodes = dict(enumerate(sorted(_online(grid, wanted))))
        return [Client(number, 0, 0) for number in nodes], nodes

    def _built(self, input_shape: tuple[int, ...], num_classes: int, vocabulary: int) -> nn.Module:
        """Build the user's model, cut where ``head`` says, with the initial arrays if there are any."""
        assert self.model is not None
        module = own_models.made(self.model, input_shape, num_classes, vocabulary, self.head)
        if self._initial:
            arrays = {name: numpy_of(name, array) for name, array in self._initial.items()}
            own_models.load_arrays(module, arrays, models.plain_names(module))
        return module

    def _sent_settings(self) -> dict[str, Value]:
        """Return the settings that clients of fedpfl need: what is not the default, and the name of the method."""
        mine = self.config.flat()
        default = Config.parse({"method": self.values["method"]}).flat()
        sent = {key: value for key, value in mine.items() if value != default[key] and key not in NOT_SENT}
        code = {key for key, _ in custom.references(sent)}  # functions are the client's own
        return {**{key: value for key, value in sent.items() if key not in code}, "method": self.method.name}

    def _plain_names(self, folder: RunFolder) -> Names:
        """Return the names that arrays of a run have in the user's own module."""
        task = folder.task()
        shape = shape_of(task["input_shape"])
        return models.plain_names(plain_model(self.config, shape, task["num_classes"], task.get("vocabulary", 0)))

    # -- a round -----------------------------------------------------------------------------------------------------

    def _take(self, rule: Rule, arrays: ArrayRecord) -> None:
        """Go on from arrays that a wrapper or a subclass has changed since :meth:`aggregate_train` returned them."""
        if arrays is self._arrays or not arrays or self._arrays is None:
            return
        given = from_named(rule.layout, arrays, self._plain)
        if np.array_equal(given, rule.common):
            return
        name = self.method.name
        if not rule.one_model:
            allowed = f"{name} sends each client arrays of its own; changes of the shared ones would not reach them"
            raise ConfigError("arrays", "changed by a wrapper", allowed)
        if not rule.only_a_sum:
            words = "the rule of %s computes more of clients' arrays than the sum that a wrapper changes"
            logger.log(WARNING, f"fedpfl: {words}", name)
        rule.shared = without_negative_variances(rule.layout, given)

    def _draw(self, grid: Grid, server_round: int, share: float, least: int, purpose: str) -> list[Client]:
        """Draw clients whose nodes are there, by Flower's numbers and fedpfl's generator."""
        assert self._loop is not None
        rule = self._loop.rule
        online = _online(grid, self.min_available_nodes)
        self._welcome(rule, online)
        there = [client for client in rule.participants if self._nodes.get(client.id) in online]
        count = min(len(there), max(int(len(there) * share), least))
        if len(there) < max(least, 1):
            words = "fedpfl: round %d: %d nodes are there, at least %d are wanted"
            logger.log(WARNING, words, server_round, len(there), least)
        if count == len(there):
            return there
        chosen = generator(self.config.run.seed, purpose, server_round).choice(len(there), count, replace=False)
        return [there[place] for place in sorted(chosen)]

    def _welcome(self, rule: Rule, online: set[int]) -> None:
        """Let nodes take part that have come since, where the rule keeps nothing of each client; warn of others."""
        new = sorted(online - set(self._nodes.values()) - self._strangers)
        if self._counts or rule.remembers or not rule.one_model:
            self._strangers.update(new)
            for node in new:
                why = "with model= nodes are asked" if self._counts else f"{self.method.name} needs all clients"
                logger.log(WARNING, "fedpfl: node %d came late and does not take part: %s before round 1", node, why)
            return
        for node in new:
            client = Client(len(self._nodes), 0, 0)
            self._nodes[client.id] = node
            rule.join(client)
            rule.personal_round[client.id] = 0

    def _messages(self, requests: Sequence[Request], config: ConfigRecord, server_round: int) -> list[Message]:
        assert self._loop is not None
        layout = self._loop.rule.layout
        records: dict[int, tuple[Payload, ArrayRecord, ArrayRecord]] = {}
        self._sent = {}
        config["server-round"] = server_round
        for request in requests:
            payload = request.make()
            key = id(payload.arrays)
            if key not in records:  # equal arrays are one record: serialised once, held once
                arrays, extras = to_named(layout, payload.arrays, self._plain)
                records[key] = payload, ArrayRecord({**arrays, **self._exact}), extras
            _, arrays, extras = records[key]
            own: dict[str, Any] = {name: value for name, value in payload.config.items() if name != "layout"}
            own |= {"frozen": layout.frozen, "personal": list(self.personal), SETTINGS: self._text}
            if taken := [key for key in own if key in config]:
                raise ConfigError(self.configrecord_key, taken[0], "is a name of fedpfl's own in the messages' config")
            mine = ConfigRecord({**dict(config), **own})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: mine})
            if extras:
                content[EXTRAS] = extras
            message = Message(content, self._nodes[request.client.id], request.kind, group_id=str(server_round))
            self._sent[request.client.id] = request.client, message
        return [message for _, message in self._sent.values()]

    def _in_order(
        self, replies: Iterable[Message], contents: dict[int, RecordDict], trained: bool = True
    ) -> Iterator[tuple[Client, Payload]]:
        """Yield the replies in client order, and put their contents into ``contents``; note why others do not count."""
        loop = self._loop
        assert loop is not None
        of_message = {message.metadata.message_id: client for client, message in self._sent.values()}
        of_node = {message.metadata.dst_node_id: client for client, message in self._sent.values()}
        found: dict[int, Message] = {}
        for reply in replies:
            # The SuperLink answers for a node that is gone, with an id of its own: the message comes first.
            client = of_message.get(reply.metadata.reply_to_message_id) or of_node.get(reply.metadata.src_node_id)
            if client is not None:
                found.setdefault(client.id, reply)
        for number, (client, _) in sorted(self._sent.items()):
            if number not in found:
                loop.fail(client, "no reply in time")
            elif found[number].has_error():
                error = found[number].error
                loop.fail(client, printable(str(error.reason or f"error code {error.code}"), 500))
            else:
                try:
                    read = self._read(client, found[number].content, trained)
                except LayoutError as error:
                    loop.fail(client, printable(str(error), 500))
                else:
                    contents[number] = found[number].content
                    yield read

    def _read(self, client: Client, content: RecordDict, trained: bool) -> tuple[Client, Payload]:
        """Return a reply as the rule takes it."""
        if len(content.metric_records) != 1:
            raise LayoutError(f"its reply has {len(content.metric_records)} MetricRecords, and must have one")
        said = next(iter(content.metric_records.values()))
        metrics = {name: value for name, value in said.items() if not isinstance(value, list)}
        if not trained:
            return client, Payload(metrics=metrics)
        assert self._loop is not None
        rule = self._loop.rule
        others = {name: record for name, record in content.array_records.items() if name != EXTRAS}
        if len(others) != 1:
            raise LayoutError(f"its reply has {len(others)} ArrayRecords with arrays of the model, and must have one")
        record = next(iter(others.values()))
        shared = from_named(rule.layout, record, self._plain) if rule.takes_shared else None
        arrays = {} if shared is None else rule.layout.pack(shared, self.config.run.wire_dtype)
        client = replace(client, train_samples=cast(int, metrics.get(self.weighted_by_key, 0)))
        if not self._counts:
            rule.clients[client.id] = client
        metrics["train-samples"] = client.train_samples
        config: dict[str, Value] = {"layout": rule.layout.to_text()}
        return client, Payload(config, metrics, {**others_of(content.array_records.get(EXTRAS)), **arrays})

    def _keep_exact(self, content: RecordDict) -> None:
        """Take a client's arrays of which no mean is made."""
        record = next(record for name, record in content.array_records.items() if name != EXTRAS)
        for name, known in self._exact.items():
            if name in record and numpy_of(name, record[name]).shape == numpy_of(name, known).shape:
                self._exact[name] = record[name]

    def _named(self, rule: Rule) -> ArrayRecord:
        arrays = rule.layout.unflatten(rule.common)
        return ArrayRecord({**{self._plain(name): Array(array) for name, array in arrays.items()}, **self._exact})

    def _tell_failures(self, loop: RoundLoop) -> None:
        for number, reason in sorted(loop.round.failed.items()):
            logger.log(WARNING, "fedpfl: round %d: client %d (node %d): %s", loop.round.number, number,
                       self._nodes[number], reason)  # fmt: skip


@dataclass(frozen=True)
class Weighted(Expected):
    """Expects one number, the weight of a reply; all others may be anything."""

    key: str = "num-examples"
    most: int = 0

    def examine(self, kind: str, client: Client, metrics: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Return why a reply cannot count, or an empty text."""
        try:
            require_metrics(metrics)
        except LayoutError as error:
            return str(error), {}
        given = metrics.get(self.key)
        wrong = problem(self.key, given, Bounds(float, 0, self.most))
        if not wrong and kind == TRAIN and not given:
            wrong = f"{self.key} = 0: it has trained on nothing"
        return (f"its reply says {wrong}" if wrong else ""), {}


def _online(grid: Grid, least: int) -> set[int]:
    """Return the nodes that are there, once there are as many as wanted."""
    while len(found := set(grid.get_node_ids())) < least:
        logger.log(INFO, "waiting for nodes: %d of at least %d are there", len(found), least)
        time.sleep(1)
    return found


class _Kept(Listener):
    """Keeps what Flower's ``Result`` holds of a run in fedpfl's own loop, and calls ``evaluate_fn``."""

    def __init__(self, evaluate_fn: EvaluateFunction | None, names: Callable[[RunFolder], Names]) -> None:
        self.result, self._evaluate_fn, self._names = Result(), evaluate_fn, names

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Find the names of the arrays."""
        self._plain = self._names(folder)

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Keep a round's metrics, and the arrays that it has made."""
        arrays = rule.layout.unflatten(rule.common)
        self.result.arrays = ArrayRecord({self._plain(name): Array(array) for name, array in arrays.items()})
        self.result.train_metrics_clientapp[done.number] = MetricRecord({"train-loss": done.line["train_loss"]})
        scores = {}
        for model in ("personalised", "global"):
            found = done.line.get(model, {})
            # The mean over samples, as in Flower's loop.
            means = {"accuracy": found.get("weighted", found.get("accuracy")), "loss": found.get("loss")}
            scores.update({f"{model}-{name}": mean for name, mean in means.items() if mean is not None})
        if scores:
            self.result.evaluate_metrics_clientapp[done.number] = MetricRecord(scores)
        if self._evaluate_fn and (found := self._evaluate_fn(done.number, self.result.arrays)) is not None:
            self.result.evaluate_metrics_serverapp[done.number] = found
        return False


def run_over_flower(grid: Grid, run_config: Mapping[str, Value]) -> RunFolder:
    """Run a federation over the nodes of a Grid, with the settings that Flower hands to the ServerApp."""
    config = Config.parse(run_config)
    strategy = of(type(config.method)).of_run(run_config)
    strategy.start(grid, num_rounds=config.run.num_server_rounds, timeout=config.run.round_timeout)
    assert strategy.folder is not None
    return strategy.folder


# -- the classes -------------------------------------------------------------------------------------------------------


def needs_of(method: Method) -> list[str]:
    """Return what a method needs of clients besides shared arrays; nothing if Flower's own ClientApps are enough."""
    rule = method.aggregation.rule
    found = own_of(method, OF_ARRAYS)
    if method.extras:
        found.append(f"sends {', '.join(extra.name for extra in method.extras)} besides the shared arrays")
    if rule.reads:
        found.append(f"weighs by {', '.join(rule.reads)}")
    return found


def own_of(method: Method, hooks: Mapping[str, str]) -> list[str]:
    """Return what a method does by those of the hooks that it has itself: each hook's words."""
    kind = type(method)
    return [words for hook, words in hooks.items() if getattr(kind, hook) is not getattr(Method, hook)]


def _is_built_in(method: type[Method]) -> bool:
    return methods().get(method.name) is method


_classes: dict[type[Method], type[MethodStrategy]] = {}


def of(method: type[Method]) -> type[MethodStrategy]:
    """Return the strategy of a method, also of one's own.

    Parameters
    ----------
    method : subclass of Method
        The method.

    Returns
    -------
    subclass of MethodStrategy
        Its constructor takes Flower's settings, and the method's by their names.

    Examples
    --------
    >>> import fedpfl
    >>> from fedpfl import strategies
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    ...
    ...     def is_shared(self, name, model):
    ...         return not name.startswith("head.")
    >>> strategies.of(Mine)(fraction_train=0.5).summary()
    """
    if method in _classes:
        return _classes[method]
    made = _classes[method] = type(method.__name__, (MethodStrategy,), {"method": method, "__doc__": _about(method)})
    made.__module__ = "fedpfl.strategies"
    own = [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
           for field in fields(method.Settings)]  # fmt: skip
    *listed, last = inspect.signature(MethodStrategy.__init__).parameters.values()
    made.__signature__ = inspect.Signature([*listed[1:], *own, last])  # type: ignore[attr-defined]
    return made


def _about(method: type[Method]) -> str:
    """Return a class's docstring: what the method is, what travels, and its settings."""
    lines = [f"{(inspect.getdoc(method) or method.name).splitlines()[0]}", ""]
    lines += [f"Paper: {method.paper}.", ""] if method.paper else []
    lines += [f"What travels: {method.shares}.", "", "Parameters", "----------"]
    for field in fields(method.Settings):
        lines += [f"{field.name} : {field.type}, default {field.default!r}", f"    {field.metadata['doc']}"]
    lines += ["fraction_train, …, **settings", "    As in :class:`MethodStrategy`."]
    return "\n".join(lines)
