"""Every method as a Flower strategy.

:class:`MethodStrategy` runs the one loop over rounds (:class:`~fedpfl.engine.rounds.RoundLoop`) either as Flower calls
its hooks or by itself; each method's class is made by :func:`of`.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from logging import INFO, WARNING, getLogger
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from .. import models
from ..client.state import require_key
from ..core.errors import ConfigError, FedpflError, did_you_mean
from ..core.layout import Layout
from ..core.metric_bounds import LARGEST
from ..core.name_lists import shape_of
from ..core.samples import MAX_CLASSES
from ..core.settings import Value, key_of
from ..engine.listener import Listener, require_listeners
from ..engine.options.norm_limit import limit_of
from ..engine.options.privacy import server_privacy
from ..engine.rounds import RoundFailed, RoundLoop
from ..methods import Method
from ..methods.base import overridden
from ..methods.bases.adapters import AdapterMethod
from ..models import user_model as own_models
from ..models.adapters import matrix_of
from ..results.run_folder import RunFolder
from ..rules import Rule
from ..setup.all_settings import check_keys, code_in, require_used, unused
from ..setup.assembly import extras_of, make_rule, plain_model
from ..setup.config import Config
from ..setup.objects import as_setting
from ..setup.options.privacy import PrivacyOption
from ..setup.options.robust import RobustSettings
from .grid_transport import FlowerTransport
from .hooks_transport import LATE, HooksTransport, MessageForm, SamplingByShares
from .keep import ARRAYS
from .messages import Names, from_named, initial_of, numpy_of, read_settings, settings_text
from .refusals import (
    require_arguments,
    require_called,
    require_in_half,
    require_private,
    require_rounds,
    require_settings,
    tell_unsent,
)
from .reported_numbers import EPSILON, SAMPLES, Weighted, bounded, heaviest_of, mean_of_metrics, most_by_median
from .run_result import EvaluateFunction, ResultRecorder
from .sent_settings import NOT_SENT, OF_STRATEGY
from .split import Split
from .wrappers import Wrapper, take_changed, wrapper_of

logger = getLogger("flwr")

# What a method may do for which shared arrays alone are not enough, nor a training of one's own.
OF_ARRAYS = {"build": "changes the model", "sharing": "shares parts of arrays"}
OF_TRAINING = {
    "prepare": "prepares the model", "schedule": "trains in phases of its own",
    "conclude": "computes more after the training",
    "personalised": "predicts in its own way", "adaptation": "adapts the model before a test",
}  # fmt: skip
# The hooks of Flower's loop, which fedpfl's own does not call.
HOOKS = ("summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "start")
# Flower's names of settings that have other ones here.
FLOWERS_NAMES = {
    "proximal_mu": "only FedProx has it", "lr": "it is learning_rate", "accept_failures": "see min_replies",
    "initial_parameters": "give initial_arrays to start", "fraction_fit": "it is fraction_train",
    "inplace": "means are made in place",
}  # fmt: skip

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


class MethodStrategy(Strategy):
    """The base of all strategies; ``fedpfl.strategies`` has one class for each method.

    There are two ways to run it. :meth:`start` is Flower's own loop over the hooks below, for any ClientApp: one with
    the mod ``fedpfl.strategies.keep``, whose functions are as Flower's documentation has them; one whose functions
    return ``fedpfl.strategies.fit``; or one that knows nothing of fedpfl. :meth:`run_federation` is fedpfl's loop, for
    ``client_app`` and fedpfl's own app: it writes a run folder, sends again what a device has lost, keeps deadlines and
    resumes. The same clients are drawn and a round has the same bits both ways.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key, \
arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As in Flower's ``FedAvg``; a metric that only some nodes send has the mean of these. Which nodes are drawn
        follows from ``seed`` and the round: ``fraction_train`` of them, rounded, and at least ``min_train_nodes``.
        Without ``model`` nodes are numbered by their ids, which Flower draws anew for each federation. But for
        ``fraction_train`` and ``min_train_nodes`` these are for Flower's loop alone.
    model : callable, nn.Module or str, optional
        Builds the model, and may take ``input_shape`` and ``num_classes``; or a module; or a name of ``fedpfl
        models``. The clients are then asked for their task before round 1, and train by ``fit`` or ``client_app``.
        Without it the strategy knows the initial arrays alone, which is enough for a method that changes no model, has
        no phases of its own and needs nothing from clients but their shared arrays.
    head : str
        Name of the layer that is the head, by default the last ``nn.Linear``.
    keep : str or sequence of str
        Arrays that stay on the nodes besides those of the method, for strategies without ``model``: a name, the layer
        above it (``"fc2"`` or ``"fc2."``), or a pattern (``"*lora_B*"``). ``personal`` is another word for it.
    state_key : str, optional
        The name under which nodes keep their arrays, by default a new one for each start: with it they go on from what
        they have kept in an earlier program.
    listeners : sequence of Listener
        Follow the rounds. In Flower's loop ``done.line`` has the round and its clients alone, no node is asked after
        the round in which one ends the run, and those with ``run_started`` or ``run_ended`` are refused.
    **settings
        The method's settings, and those that all methods have, with underscores: ``local_epochs=2``. They are sent to
        nodes with ``fit`` or ``client_app``, but for functions, which are the nodes' own. ``FedProx(proximal_mu=0.1)``
        is Flower's own: sent as ``proximal-mu`` to ClientApps that add the term themselves.

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
        weighted_by_key: str = SAMPLES,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        *,
        model: Callable[..., nn.Module] | nn.Module | str | None = None,
        head: str = "",
        keep: str | Sequence[str] = (),
        personal: str | Sequence[str] = (),
        state_key: str = "",
        listeners: Sequence[Listener] = (),
        **settings: Any,
    ) -> None:
        require_arguments({
            "fraction_train": fraction_train, "fraction_evaluate": fraction_evaluate,
            "min_train_nodes": min_train_nodes, "min_evaluate_nodes": min_evaluate_nodes,
            "min_available_nodes": min_available_nodes, "weighted_by_key": weighted_by_key,
            "arrayrecord_key": arrayrecord_key, "configrecord_key": configrecord_key,
            "train_metrics_aggr_fn": train_metrics_aggr_fn, "evaluate_metrics_aggr_fn": evaluate_metrics_aggr_fn,
        })  # fmt: skip
        names = [[one] if isinstance(one, str) or not isinstance(one, Iterable) else one for one in (keep, personal)]
        self.keep = tuple(name for some in names for name in some)
        if not isinstance(head, str):
            raise ConfigError("head", head, "must be the name of a layer")
        if wrong := [name for name in self.keep if not isinstance(name, str)]:
            raise ConfigError("keep", wrong[0], "must be a name of arrays or of a layer, or a list of such names")
        if self.keep and model is not None:
            raise ConfigError("keep", self.keep, "cannot be combined with model, of which the method decides")
        if state_key and model is not None:
            raise ConfigError("state_key", state_key, "is for nodes with the mod keep; a run of run_federation goes on "
                                                      "by resume")  # fmt: skip
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = min_train_nodes if fraction_train else 0
        self.min_evaluate_nodes = min_evaluate_nodes if fraction_evaluate else 0
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key, self.arrayrecord_key = weighted_by_key, arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or mean_of_metrics
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or mean_of_metrics
        self.model, self.head = model, head
        require_listeners("listeners", listeners)
        self.listeners = list(listeners)
        self.folder: RunFolder | None = None
        self._flowers_mu = self.method.name == "fedprox" and "proximal_mu" in settings
        if self._flowers_mu:
            settings["mu"] = settings.pop("proximal_mu")
        self._objects = ExitStack()  # Python objects that settings name, for as long as the strategy lives
        self.values = self._by_key(settings)
        self.config = Config.parse(self.values)
        if state_key:
            require_key(state_key)
        self._key = state_key
        self._told = False  # whether Flower hands the settings to the clients
        self._knows_rounds = "num-server-rounds" in self.values  # or `start` says how many there are
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget the nodes and the rounds that there were."""
        self.state_key, self._life = self._key or secrets.token_hex(8), secrets.token_hex(8)
        self._loop: RoundLoop | None = None
        self._way: HooksTransport | None = None
        self._split: Split | None = None
        self._initial = ArrayRecord()
        self._arrays: ArrayRecord | None = None  # what the last round made
        self._result: ArrayRecord | None = None  # and what the last start has returned, after a subclass's hooks
        self._before = 0  # rounds of earlier starts
        self._rounds = 0  # that were begun in this one
        self._asked = ""  # the hook that is to get replies
        self._failed: RoundFailed | None = None
        self._counted = 0
        self._told_heavy: set[tuple[str, int]] = set()  # hooks, and clients that were most of a mean there
        self._over = 0  # the round after which a listener has ended the run
        self._wrapper: Wrapper | None = None
        self._sent: tuple[Config, str] | None = None  # settings, and what clients get of them

    @classmethod
    def of_run(cls, run_config: Mapping[str, Value]) -> MethodStrategy:
        """Return the strategy of a run of fedpfl's own app, with the settings that Flower hands to the ServerApp."""
        self = cls(min_train_nodes=1)
        self.values, self.config = dict(run_config), Config.parse(run_config)
        self._told = True
        return self

    def _by_key(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by their keys: a method's own have its name in front."""
        name = self.method.name
        keys = {field.name: key_of(field, name) for field in fields(self.method.Settings)}
        text = name if _is_built_in(self.method) else self._as_setting("method", self.method)
        values: dict[str, Any] = {"method": text}
        if self.fraction_train:
            values["fraction-train"] = self.fraction_train
        if self.model is not None:
            built = own_models.under_its_name(self.model, self._built)
            made = built if self.head else self.model  # a class of the user's is the same one in a resumed run
            values["model"] = made if isinstance(made, str) else self._as_setting("model", made)
        texts = {field.name for field in fields(self.method.Settings) if isinstance(field.default, str)}
        for key, value in settings.items():
            number = key in texts and type(value) in (int, float)  # such as tau=0.5, which may be "0.25,inf", too
            values[keys.get(key, key.replace("_", "-"))] = str(value) if number else value
        self._check_keys(values, settings)
        return values

    def _check_keys(self, values: Mapping[str, Any], names: Collection[str]) -> None:
        """Refuse keys that no setting has; ``names`` are those that the user wrote."""
        try:
            check_keys(values)
            require_used(values, [self.method.name])
        except ConfigError as error:
            key = error.key.replace("-", "_")
            if key in FLOWERS_NAMES:
                raise ConfigError(key, error.value, f"is no setting here: {FLOWERS_NAMES[key]}") from None
            hint = did_you_mean(key, sorted(field.name for field in fields(self.method.Settings)))
            if key not in names or not hint:
                raise
            raise ConfigError(key, error.value, f"{self.method.name} has no such setting{hint}") from None

    def _as_setting(self, kind: str, thing: object) -> str:
        return self._objects.enter_context(as_setting(kind, thing))

    # -- Flower's hooks ----------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log what the method shares, and how nodes are drawn."""
        logger.log(INFO, "\t├──> %s: shares %s", self.method.name, self.method.shares)
        logger.log(
            INFO, "\t└──> nodes: %.2f to train (at least %d), %.2f to evaluate (at least %d), %d available",
            self.fraction_train, self.min_train_nodes, self.fraction_evaluate, self.min_evaluate_nodes,
            self.min_available_nodes,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which nodes train: shared arrays by name, ``server-round``, the method's extras."""
        self._wrapper = self._wrapper or wrapper_of(self)
        loop, way = self._begun(grid, arrays)
        self._rounds = server_round
        self._asked = ""
        if self._over:
            return []
        loop.open(way, self._before + server_round)
        if not self.fraction_train:
            return []
        self._asked = "aggregate_train"
        requests = loop.begin(loop.round.number)
        messages = way.messages(requests, self._with_settings(config), server_round)
        logger.log(INFO, "configure_train: Sampled %d nodes (out of %d)", len(messages), len(way.online))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies by the method's rule; return the shared arrays by name, and the mean metrics."""
        loop, way = self._loop, self._way
        if not self._expects("aggregate_train", replies := [*replies]):
            return None, None
        assert loop is not None and way is not None
        try:
            loop.combine(loop.round.number, way.read(replies, loop.fail, trained=True))
        except RoundFailed as error:
            self._tell("aggregate_train")
            logger.log(WARNING, "fedpfl: %s", error)
            if self.config.run.min_replies > 1 or self._wrapper is not None:
                raise
            self._failed = error
            return None, None
        self._tell("aggregate_train")
        counted = [way.contents[client] for client in sorted(loop.round.trained)]
        if way.split is not None:
            way.split.take_exact(counted)
        self._counted += 1
        loop.round.line = {"round": loop.round.number, "clients": sorted(loop.round.trained)}
        self._over = server_round if loop.close() else 0
        if self._wrapper is not None:
            self._wrapper.require_right_noise(self.config.method, loop, self.weighted_by_key)
        arrays = self._named(loop.rule)
        self._arrays = ArrayRecord(dict(arrays))  # as a subclass may change what it gets in place
        metrics = self._mean_of(self.train_metrics_aggr_fn, loop.round.trained)
        if spent := loop.round.privacy:
            metrics[EPSILON] = spent["epsilon"]
            logger.log(INFO, "fedpfl: privacy spent: ε = %.2f at δ = %g", spent["epsilon"], spent["delta"])
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which nodes test their personalised models."""
        if self._asked == "aggregate_train" and self._wrapper is None:
            self._refuse_uncalled("aggregate_train")
        loop, way = self._begun(grid, arrays)
        number = self._before + server_round
        ended = self._over and server_round != self._over
        self._asked = ""
        if not self.fraction_evaluate or ended or not self.config.run.evaluates_in(number):
            return []
        self._asked = "aggregate_evaluate"
        way.look()
        requests = loop.test_requests(number)
        messages = way.messages(requests, self._with_settings(config), server_round)
        logger.log(INFO, "configure_evaluate: Sampled %d nodes (out of %d)", len(messages), len(way.online))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the nodes' metrics, weighted by ``weighted_by_key``."""
        loop, way = self._loop, self._way
        if not self._expects("aggregate_evaluate", replies := [*replies]):
            return None
        assert loop is not None and way is not None
        loop.collect_scores(way.read(replies, loop.fail, trained=False))
        self._tell("aggregate_evaluate")
        clients = loop.round.evaluated
        return self._mean_of(self.evaluate_metrics_aggr_fn, clients) if clients else None

    def _expects(self, hook: str, replies: Collection[Message]) -> bool:
        """Return whether a hook is to get replies; refuse those to messages that this strategy has not made."""
        if self._asked != hook and replies:
            self._refuse_uncalled(hook.replace("aggregate", "configure"))
        expects, self._asked = self._asked == hook, ""
        return expects

    def _refuse_uncalled(self, hook: str) -> None:
        """Refuse hooks of a subclass that leave out one of these, without which no round can count."""
        message = f"its {hook} was not called, so that no reply can count: call super().{hook} in one of your own"
        raise ConfigError("strategy", type(self).__name__, message)

    def _mean_of(self, function: MetricsFunction, clients: Collection[int]) -> MetricRecord:
        """Return the numbers that a function makes of clients' replies; fedpfl's own bounds what a reply counts."""
        assert self._way is not None
        counted = [self._way.contents[client] for client in sorted(clients)]
        if function is mean_of_metrics:
            share = self.config.of(RobustSettings).max_weight_share
            return mean_of_metrics(counted, self.weighted_by_key, share, [*map(self._way.shown, sorted(clients))])
        return function(counted, self.weighted_by_key)

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run Flower's loop and return its ``Result``, whose ``arrays`` are the shared ones by name.

        ``initial_arrays`` are a state dict of the plain model; with ``model=`` they may be empty, which is the model's
        own. Nodes with the mod begin with the personal arrays among them, in ``evaluate_fn`` these stand beside the
        shared ones. If the arrays are what this strategy's last start has returned, it goes on: rounds are counted on,
        and nodes keep their personal arrays. Otherwise all begin anew.

        ``num_rounds`` and ``timeout`` are by default the settings ``num_server_rounds`` and ``round_timeout`` of this
        strategy, or Flower's 3 and 3600. If several starts make one run, ``num_server_rounds`` is the number of all
        their rounds, by which learning rates fall. With ``model=`` entries of ``train_config`` are settings of the
        round.

        Some methods send each client other arrays. Their ``Result.arrays`` are the mean over the clients.

        Raises
        ------
        FedpflError
            No round counted, or fewer than ``min_replies`` nodes trained in one.
        """
        if initial_arrays is None:
            raise ConfigError("initial_arrays", None, "must be given; run_federation(grid) is fedpfl's own loop")
        if not isinstance(initial_arrays, ArrayRecord):
            raise ConfigError(
                "initial_arrays", initial_arrays, "must be an ArrayRecord: ArrayRecord(model.state_dict())"
            )
        for argument, record in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if not (record is None or isinstance(record, Mapping)):
                raise ConfigError(argument, record, 'must be a ConfigRecord, such as ConfigRecord({"lr": 0.01})')
        _require_callable(evaluate_fn)
        rounds, seconds = self._rounds_and_seconds(num_rounds, timeout)
        self._knows_rounds = True
        self._continue(initial_arrays)
        # One start of several knows the number of all rounds from the strategy alone.
        planned = max(self._before + rounds, self.values.get("num-server-rounds", 0))
        if self._before and "num-server-rounds" not in self.values:
            require_rounds(self.config, "one start of several does not tell")
        if self._loop is None:  # what follows from the number of rounds stays, such as noise
            self.config = Config.parse({**self.values, "num-server-rounds": planned})
        run = replace(self.config.run, num_server_rounds=planned)
        self.config = replace(self.config, run=run)
        if self._loop is not None and self._way is not None:
            self._loop.settings = self._loop.sampling.settings = run
            self._way.settings = self._settings_text()
        evaluate = evaluate_fn
        if evaluate_fn is not None:
            if self.model is None:
                self._split = self._split or self._split_of(initial_arrays)
            split, initial = self._split, initial_arrays
            if split is not None:
                initial = split.whole(initial_arrays)
            if split.initial if split is not None else overridden(self.config.method, {"is_shared": "keeps arrays"}):
                warning = "fedpfl: evaluate_fn gets the shared arrays and the initial personal ones: no node's model"
                logger.log(WARNING, warning)
            evaluate = lambda number, arrays: evaluate_fn(number, _filled(initial, arrays))  # noqa: E731
        self._counted, self._failed, self._over = 0, None, 0
        result = super().start(grid, initial_arrays, rounds, seconds, train_config, evaluate_config, evaluate)
        self._before += rounds
        self._result = ArrayRecord(dict(result.arrays))
        if self._failed is not None and not self._counted:
            raise FedpflError(f"no round counted: {self._failed}") from self._failed
        return result

    def run_federation(
        self,
        grid: Grid,
        num_rounds: int | None = None,
        timeout: float | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run fedpfl's loop over nodes with ``client_app`` or fedpfl's own app, and return Flower's ``Result``.

        ``folder`` is then the run's folder, and ``evaluate_fn`` is called after each round. ``num_rounds`` and
        ``timeout`` are as in :meth:`start`.
        """
        # What Flower's loop does not need.
        from ..engine.server_run import Log, run_federation

        _require_callable(evaluate_fn)
        if not self.fraction_train:
            raise ConfigError("fraction_train", 0.0, "must be above 0 in fedpfl's own loop")
        made = type(self)
        for hook in HOOKS:
            theirs = made.__mro__[made.__mro__.index(of(self.method)) + 1 :] if self.method in _classes else ()
            ours = of(self.method) if theirs else MethodStrategy
            if getattr(made, hook) is not getattr(ours, hook):
                message = f"overrides {hook}, which fedpfl's own loop never calls: use listeners="
                raise ConfigError("strategy", made.__name__, message)
        _, _, *flowers = inspect.signature(MethodStrategy.__init__).parameters.values()  # without self, fraction_train
        for argument in flowers:
            of_flower, value = argument.kind is argument.POSITIONAL_OR_KEYWORD, getattr(self, argument.name, None)
            acts = argument.name == "min_train_nodes"
            if of_flower and not acts and value not in (argument.default, mean_of_metrics):
                raise ConfigError(argument.name, value, "has no effect in fedpfl's own loop: use start")
        if not self._told:
            tell_unsent(self.values)
        rounds, seconds = self._rounds_and_seconds(num_rounds, timeout)
        self.config = Config.parse({**self.values, "num-server-rounds": rounds, "round-timeout": seconds})
        recorder = ResultRecorder(evaluate_fn, self._plain_names)
        transport = FlowerTransport(grid, "" if self._told else self._settings_text())
        transport.least = max(1, self.min_train_nodes)
        following = [Log(rounds), *self.listeners, recorder]
        self.folder = run_federation(transport, self.config, following, unused(self.values, self.method.name))
        return recorder.result

    def _rounds_and_seconds(self, num_rounds: int | None, timeout: float | None) -> tuple[int, float]:
        """Return the number of rounds and the seconds: arguments first, then settings, then Flower's defaults."""
        rounds = self.values.get("num-server-rounds", 3) if num_rounds is None else num_rounds
        seconds = self.values.get("round-timeout", 3600) if timeout is None else timeout
        numbers = {"num-server-rounds": rounds, "round-timeout": seconds}
        run = Config.parse({"method": self.values["method"], **numbers}).run
        return run.num_server_rounds, run.round_timeout

    def shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays of a state dict that the method shares; for a strategy without ``model``.

        Wrappers of Flower's that compare replies with the initial arrays, as those for differential privacy do, are
        started with these.
        """
        self._split = self._split_of(arrays)
        return self._split.shared(arrays)

    # -- before round 1 ----------------------------------------------------------------------------------------------

    def _continue(self, arrays: ArrayRecord) -> None:
        """Go on from what the last start has made, or begin anew with other arrays."""
        if any(last and _equal(arrays, last) for last in (self._result, self._arrays)):
            return
        split, began, last = self._split, self._loop is not None, self._arrays
        filled = last is not None and not self._key and last.keys() < arrays.keys()
        if last is not None and filled and _equal(ArrayRecord({name: arrays[name] for name in last}), last):
            warning = "fedpfl: initial_arrays are the last result, filled: nodes begin with the personal arrays there; "
            logger.log(WARNING, f"{warning}start with the result alone to have them go on from their own")
        if began:
            self._begin_anew()
        # The shared arrays of before: which ones are personal, and what these were, is known.
        if split is not None and split.takes(arrays):
            self._split = split

    def _begun(self, grid: Grid, arrays: ArrayRecord) -> tuple[RoundLoop, HooksTransport]:
        """Return the loop whose rounds the hooks run and its transport, with the arrays that Flower hands over."""
        if self._loop is None or self._way is None:
            self._begin(grid, arrays)
        elif arrays and self._arrays is not None and not _equal(arrays, self._arrays):
            self._take(self._loop.rule, arrays)
        assert self._loop is not None and self._way is not None
        return self._loop, self._way

    def _take(self, rule: Rule, arrays: ArrayRecord) -> None:
        """Go on from arrays that a wrapper or a subclass may have changed."""
        assert self._arrays is not None
        if more := [name for name in arrays if name not in self._arrays and name not in self._initial]:
            message = "is none of those that super() has returned, and would not be sent: put it into the messages"
            raise ConfigError("arrays", more[0], message)
        if self._split is None:
            vector = from_named(rule.layout, arrays, self._plain)
        else:
            vector = self._split.floats_of(arrays)
            if self._wrapper is None or not self._wrapper.adds_noise:
                self._split.take_exact([RecordDict({"arrays": arrays})])
        take_changed(self.config.method, rule, vector)

    def _begin(self, grid: Grid, arrays: ArrayRecord) -> None:
        require_settings(self.config, self.model is not None, self.values)
        require_called(self.listeners)
        if not self._knows_rounds:
            require_rounds(self.config, "a wrapper does not tell")
        tell_unsent(self.values)
        self._initial = arrays
        text, available = self._settings_text(), self.min_available_nodes
        always: dict[str, Any] = {} if self.weighted_by_key == SAMPLES else {"weighted-by": self.weighted_by_key}
        if self.arrayrecord_key != "arrays":
            always[ARRAYS] = self.arrayrecord_key
        if self.model is not None:
            always["phases"] = True
        if self._flowers_mu:
            always["proximal-mu"] = self.config.method.settings.mu
        form = MessageForm(self.arrayrecord_key, self.configrecord_key, self.weighted_by_key, always)
        least = max(available, self.min_train_nodes)
        if self.model is None:
            before = self._split
            split = self._split = before if before and before.takes(arrays) else self._split_of(arrays)
            require_private(self.config, split.exact)
            split.take_shared(arrays)
            if not split.sharing.layout.size:
                self.config.require_combined()
            if self._wrapper is not None:
                self._wrapper.require_right(self.config.method, arrays, split)
            way = HooksTransport(grid, text, form, split, self._life, least)
            model: nn.Module = split.model
            clients, sharing, plain = way.place_all(), split.sharing, split.plain
            layouts: dict[int, Layout] = {}
            split.tell()
            if not self.keep:
                for remark in self.config.method.remarks(model, len(clients), self.config.run.num_server_rounds):
                    logger.log(WARNING, "fedpfl: %s", remark)
        else:
            from ..engine.agreement import agree
            from ..engine.beginning import remarks_of

            assert self.model is not None
            if self._wrapper is not None:
                self._wrapper.require_right(self.config.method, arrays, None, own_models.name_of(self.model))
            built = own_models.under_its_name(self.model, self._built)
            run = replace(self.config.run, model=self._as_setting("model", built))
            self.config = replace(self.config, run=run)
            way = HooksTransport(grid, text, form, None, self._life, least)
            agreed = agree(self.config, way.find_clients(self.config, self.state_key))
            clients, model, sharing, layouts = agreed.clients, agreed.model, agreed.sharing, agreed.layouts
            plain = models.plain_names(model)
            for remark in (*remarks_of(self.config, agreed, True), *agreed.remarks):
                logger.log(WARNING, "fedpfl: %s", remark)
        rule = make_rule(self.config, clients, sharing, layouts)
        way.rule, way.plain, self._plain = rule, plain, plain
        if overridden := [hook for hook in HOOKS if getattr(type(self), hook) is not getattr(MethodStrategy, hook)]:
            way.missing = f"{LATE}, or left out by {' or '.join(overridden)} of {type(self).__name__}"
        extras = extras_of(self.config, model, sharing)
        # A strategy in the place of Flower's limits nothing that nobody has asked it to.
        limited = self.model is not None or "update-norm-limit" in self.values
        limit = limit_of(self.config, extras)
        limit.factor = limit.factor if limited else 0.0
        run = self.config.run
        sampling = SamplingByShares(run, way, self.min_train_nodes, (self.fraction_evaluate, self.min_evaluate_nodes))
        private = []
        if self.config.wants(PrivacyOption):
            private.append(server_privacy(self.config, rule, self.state_key))
        followers = [limit, *private, *self.listeners]
        self._loop = RoundLoop(rule, run, self.state_key, extras, followers, sampling=sampling)
        said = self.model is None and "max-client-samples" not in self.values
        values = 1 if self.model is None or self.config.training.kind.classes else MAX_CLASSES
        most = LARGEST if said else run.max_client_samples
        self._loop.expected = Weighted(
            key=self.weighted_by_key, most=most, is_asked=self.model is not None, values=values
        )
        self._way = way

    def _split_of(self, arrays: ArrayRecord) -> Split:
        """Split arrays into shared and personal ones; refuse a method that needs more of a client than these."""
        method = self.config.method
        has_adapters = type(method).build is AdapterMethod.build and any(matrix_of(name) for name in arrays)
        if needs := needs_of(method, {"build"} if has_adapters else (), self._flowers_mu):
            what = f"needs more of a client than shared arrays: it {' and '.join(needs)}"
            use = "give model=, and use strategies.fit or strategies.client_app on the clients"
            if self.method.name == "fedprox":
                use += "; or proximal_mu=, as Flower's FedProx, for ClientApps that add the term themselves"
            raise ConfigError("model", None, f"{self.method.name} {what}; {use}")
        return Split(method, arrays, self.head, self.keep, bool(self._key))

    def _built(self, input_shape: tuple[int, ...], num_classes: int, vocabulary: int) -> nn.Module:
        """Build the user's model, cut where ``head`` says, with the initial arrays if there are any."""
        assert self.model is not None
        module = own_models.made(self.model, input_shape, num_classes, vocabulary, self.head)
        if self._initial:
            plain = models.plain_names(module)
            arrays = initial_of(self._initial)
            # The shared arrays of an earlier result are filled with the model's own.
            built = {plain(name): array.numpy() for name, array in module.state_dict().items()}
            own_models.load_arrays(module, {**built, **arrays} if arrays.keys() <= built.keys() else arrays, plain)
        return module

    def _settings_text(self) -> str:
        """Return the settings for clients of fedpfl as a text, made once while they stay the same."""
        if self._sent is None or self._sent[0] is not self.config:
            self._sent = self.config, settings_text(self._sent_settings())
        return self._sent[1]

    def _sent_settings(self) -> dict[str, Value]:
        """Return the settings that clients of fedpfl need: what is not the default, and the name of the method."""
        mine = self.config.flat()
        default = Config.parse({"method": self.values["method"]}).flat()
        sent = {
            key: value for key, value in mine.items()
            if (value != default[key] or key in self.values) and key not in NOT_SENT
        }  # fmt: skip
        if mine["num-clients"]:  # for nodes that do not know which of how many they are
            sent["num-clients"] = mine["num-clients"]
        code = {key for key, _ in code_in(sent)}  # functions are the client's own
        return {**{key: value for key, value in sent.items() if key not in code}, "method": self.method.name}

    def _with_settings(self, config: ConfigRecord) -> ConfigRecord:
        """Have settings act that Flower's ``train_config`` names, where nodes train by ``fit``."""
        assert self._way is not None
        self._way.settings = self._settings_text()
        named = {key: value for key, value in config.items() if key != "server-round"}
        if self.model is None or not named:
            return config
        keys = {field.name: key_of(field, self.method.name) for field in fields(self.method.Settings)}
        values = {keys.get(key.replace("-", "_"), key.replace("_", "-")): value for key, value in named.items()}
        self._check_keys({"method": self.values["method"], **values}, named)
        for key, value in values.items():
            if key in NOT_SENT:
                raise ConfigError(key, value, "cannot be sent to the nodes")
            if key in OF_STRATEGY:
                raise ConfigError(key, value, "has no effect in a round's messages: give it to the strategy")
        sent = {**read_settings(self._way.settings), **values}
        made = Config.parse({**sent, "method": self.values["method"]})
        require_settings(made, True, values)
        require_in_half(made, self.config, values, trains=self._asked == "aggregate_train")
        self._way.settings = settings_text(sent)
        return config

    def _plain_names(self, folder: RunFolder) -> Names:
        """Return the names that arrays of a run have in the user's own module."""
        task = folder.task()
        shape = shape_of(task["input_shape"])
        return models.plain_names(plain_model(self.config, shape, task["num_classes"], task.get("vocabulary", 0)))

    # -- a round -----------------------------------------------------------------------------------------------------

    def _named(self, rule: Rule) -> ArrayRecord:
        arrays = {self._plain(name): array for name, array in rule.layout.unflatten(rule.common).items()}
        if self._way is not None and self._way.split is not None:
            return self._way.split.named(arrays, exact=self._wrapper is None or not self._wrapper.adds_noise)
        return ArrayRecord({name: Array(array) for name, array in arrays.items()})

    def _tell(self, hook: str) -> None:
        """Log how many replies counted, and why others did not."""
        assert self._loop is not None and self._way is not None
        done, way = self._loop.round, self._way
        counted = done.trained if hook == "aggregate_train" else done.evaluated
        self._tell_heaviest(hook, counted)
        logger.log(INFO, "%s: Received %d results and %d failures", hook, len(counted), len(done.failed))
        for client, reason in sorted(done.failed.items()):
            logger.log(WARNING, "fedpfl: round %d: %s: %s", done.number, way.shown(client), reason)
            if client in way.lost:
                self._loop.rule.personal_round[client] = 0
                warning = "fedpfl: %s has lost its personal arrays, and begins again with the initial ones"
                logger.log(WARNING, warning, way.shown(client))
        done.failed = {}

    def _tell_heaviest(self, hook: str, counted: Mapping[int, Mapping[str, Any]]) -> None:
        """Warn once where one reply is most of a mean, or counts less than it says: its weight is the node's word."""
        assert self._loop is not None and self._way is not None
        rule, key = self._loop.rule, self.weighted_by_key
        said = {client: metrics.get(key, 0) for client, metrics in counted.items()}
        share = self.config.of(RobustSettings).max_weight_share
        weights = dict(zip(said, bounded([*said.values()], share), strict=True))
        if hook == "aggregate_train":
            robust = self.config.of(RobustSettings).robust_aggregation
            if self.config.method.aggregation.options.get("weights") == "uniform" or robust not in ("none", "clip"):
                return  # all count alike
            weights = {client: weight * rule.damping(rule.clients[client]) for client, weight in said.items()}
        heaviest, cut = heaviest_of(weights), max(said, key=lambda client: said[client], default=None)
        if cut is not None and said[cut] > max(weights[cut], most_by_median(said.values())):
            heaviest = cut, weights[cut] / sum(weights.values())
        if heaviest is None or (hook, heaviest[0]) in self._told_heavy:
            return
        client = heaviest[0]
        self._told_heavy.add((hook, client))
        counts = "" if weights[client] >= said[client] else f", counts as {weights[client]:g}"
        warning = "fedpfl: %s says %s = %g%s, and so is %.0f %% of the mean; max_weight_share= or max_client_samples= "
        warning += "bounds what nodes say"
        logger.log(WARNING, warning, self._way.shown(client), key, said[client], counts, 100 * heaviest[1])


def _equal(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Return whether two records have the same arrays under the same names, also after they were saved."""
    return one.keys() == other.keys() and all(
        array is other[name] or np.array_equal(numpy_of(name, array), numpy_of(name, other[name]))
        for name, array in one.items()
    )


def _require_callable(evaluate_fn: object) -> None:
    if not (evaluate_fn is None or callable(evaluate_fn)):
        raise ConfigError("evaluate_fn", evaluate_fn, "must be a function of the round and the arrays")


def _filled(initial: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return initial arrays with those of a round in their places; other arrays as they are."""
    if not arrays.keys() <= initial.keys():
        return arrays
    return ArrayRecord({name: arrays.get(name, array) for name, array in initial.items()})


def run_over_flower(grid: Grid, run_config: Mapping[str, Value]) -> RunFolder:
    """Run a federation over the nodes of a Grid, with the settings that Flower hands to the ServerApp."""
    config = Config.parse(run_config)
    strategy = of(type(config.method)).of_run(run_config)
    strategy.run_federation(grid, config.run.num_server_rounds, config.run.round_timeout)
    assert strategy.folder is not None
    return strategy.folder


# -- the classes -------------------------------------------------------------------------------------------------------


def needs_of(method: Method, without: Iterable[str] = (), flowers_mu: bool = False) -> list[str]:
    """Name a method's needs besides shared arrays, but for hooks ``without``; none if Flower's ClientApps do."""
    rule = method.aggregation.rule
    without = {*without, *(["schedule"] if flowers_mu else [])}
    needs = overridden(method, {hook: text for hook, text in OF_ARRAYS.items() if hook not in without})
    if method.extras:
        needs.append(f"sends {', '.join(extra.name for extra in method.extras)} besides the shared arrays")
    if rule.reads:
        needs.append(f"weighs by {', '.join(rule.reads)}")
    return needs or overridden(method, {hook: text for hook, text in OF_TRAINING.items() if hook not in without})


def _is_built_in(method: type[Method]) -> bool:
    return method.__module__.startswith(f"{Method.__module__.rpartition('.')[0]}.")


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
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)
        for field in fields(method.Settings)
    ]
    *listed, last = inspect.signature(MethodStrategy.__init__).parameters.values()
    made.__signature__ = inspect.Signature([*listed[1:], *parameters, last])  # type: ignore[attr-defined]
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
