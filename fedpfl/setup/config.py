"""All settings of a run, put together from the parts of the program that use them.

Flower hands every process the same flat mapping (``pyproject.toml``, overridden by ``--run-config``);
:meth:`Config.parse` checks it and cuts it into the settings of each part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping

from ..core import custom
from ..core import settings as s
from ..core.errors import ConfigError, did_you_mean
from ..core.extras import Extra
from ..core.layout import DTYPES
from ..core.metrics import require as require_metrics
from ..core.privacy import PrivacySettings, require_covered
from ..core.settings import setting
from ..data.settings import DataSettings
from ..methods import Method, find, known
from ..methods import names as method_names
from ..methods.base import REFUSABLE, Aggregation, adapts_itself, require_returned, tests_more_than_arrays
from ..models import TrainableSettings
from ..models import names as model_names
from ..models import sources as model_sources
from ..rules import Rule
from ..rules.averages import RobustSettings
from ..rules.server_step import ServerStepSettings
from ..training.losses import CROSS_ENTROPY
from ..training.settings import TrainingSettings

# At most six digits: what comes from the network must not make a range of billions.
_CLIENTS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?:(\S+)")
# Of the settings of run and training: see `Config.of_stored_arrays`.
_OF_ARRAYS = ("method", "model", "personal-head", "initial-weights", "seed", "keep-momentum")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class RunSettings:
    """What is run, for how long, and where the results go."""

    method: str = setting("feddecomp", "Method.", choices=method_names, open_to={custom.FORM: custom.is_reference})
    model: str = setting(
        "small-cnn",
        "Model; its input and output sizes follow from the data.",
        choices=model_names,
        open_to={**model_sources(), custom.FORM: custom.is_reference},
    )
    client_models: str = setting(
        "",
        "Models for some of the clients, as client numbers (from 0) with a model, separated by commas: "
        "0-9:fedavg-cnn,12:resnet8; or MODULE:NAME, a function that takes a client number and returns a model's name. "
        "The arrays that the method shares must have the same shapes in all models.",
    )
    num_server_rounds: int = setting(5, "Number of rounds.", minimum=1)
    fraction_train: float = setting(
        1.0, "Share of the clients asked to train in each round (join rate); at least one client.", above=0, maximum=1
    )
    personal_head: bool = setting(
        False,
        "Keep the classifier (the model's last layer) on each client, even if the method shares it. For clients "
        "with different labels or label numbering.",
    )
    new_clients: float = setting(
        0.0,
        "Share of the clients held out as new clients: they do not train and do not count in the run's accuracies. "
        "`fedpfl personalise` makes models for them afterwards.",
        minimum=0,
        maximum=0.9,
    )
    initial_weights: str = setting(
        "",
        "File of initial weights (safetensors, or a PyTorch state dict), at the same path on every machine. The "
        "last layer is initialised at random if its shape differs.",
    )
    evaluate_every: int = setting(
        1, "Rounds between evaluations of all clients. 0: only after the last round.", minimum=0
    )
    test_at: str = setting(
        "end",
        "When clients are tested. end: after a round, with the new shared arrays. start: before clients train in a "
        "round, with the shared arrays of the previous round, as on FedReG's testbed. With start the last round's "
        "result is not tested and devices write no models; `fedpfl personalise` does both afterwards.",
        choices=("end", "start"),
    )
    early_stop: int = setting(
        0,
        "Stop after this number of rounds without a better mean accuracy on the validation samples "
        "(validation-fraction). 0: no early stop.",
        minimum=0,
    )
    metrics: str = setting(
        "",
        "Metrics measured in tests besides accuracy and loss, separated by commas: balanced-accuracy, "
        "top-5-accuracy, precision-macro, recall-macro, f1-macro, f1-weighted, auroc, average-precision; with loss "
        "= multi-label also f1-micro; with mse mae, rmse, r2; or MODULE:NAME, a function of your own.",
    )
    choose_by: str = setting(
        "accuracy",
        "Metric on the validation samples that chooses the best round, controls early-stop and compares settings: "
        "accuracy, loss, or one of metrics.",
    )
    evaluate_global: bool = setting(
        False,
        "Also test the mean of the clients' whole models if the method has no global model. Warning: clients then "
        "send their personal arrays to the server.",
    )
    evaluate_trained: bool = setting(
        False,
        "Also test each client's model right after local training, before aggregation (trained in metrics.jsonl), "
        "as on FedReG's testbed.",
    )
    diagnostics: bool = setting(
        False,
        "Record how far shared and personal arrays move (drift, shared-change and personal-change in "
        "metrics.jsonl). Costs memory on the server, and disk space for a second copy of a client's personal arrays.",
    )
    seed: int = setting(1, "Seed of every random choice.", minimum=0)
    output_dir: str = setting("~/.fedpfl/runs", "Folder for run folders, on the server's machine.")
    state_dir: str = setting("~/.fedpfl/state", "Folder for a client's personal arrays, on the client's machine.")
    device_models: str = setting(
        "auto",
        "Whether a client writes its whole personalised model below state-dir on its own machine after the last "
        "round. auto: devices do; clients of a simulation do if they adapt it to the test, since `fedpfl export` finds "
        "it nowhere else.",
        choices=("auto", "always", "never"),
    )
    device_model_every: int = setting(
        0,
        "Number of rounds between further device models; clients are tested in these rounds. 0: only after the last "
        "round.",
        minimum=0,
    )
    device_models_kept: int = setting(
        2, "Number of device models that a client keeps; older ones are deleted.", minimum=1
    )
    run_name: str = setting("", "Name of the run's folder. Empty: made from method, data set and time.")
    resume: bool = setting(False, "Continue the run called run-name after its last finished round.")
    continue_from: str = setting(
        "",
        "Run (name in output-dir, or folder) whose final shared and personal arrays this new run starts from. "
        "Clients' data may have changed.",
    )
    personalise: str = setting(
        "none",
        "What to do with resume instead of more rounds. Clients that were not in the run make a model from its "
        "final shared arrays, by one round of training of their personal part (local-train) or of everything "
        "(fine-tune). Clients that missed the last test are tested and get their model. `fedpfl personalise` sets "
        "this.",
        choices=("none", "local-train", "fine-tune"),
    )
    missed_timeout: float = setting(
        0.0,
        "Over Flower, seconds to wait after the last round for clients that missed its test. Each of them gets the "
        "final shared arrays when it returns, is tested and writes its model. The run's results are written before. "
        "0: do not wait; `fedpfl personalise` serves them later.",
        minimum=0,
    )
    wire_dtype: str = setting("float32", "Number type of the float arrays in messages.", choices=DTYPES)
    node_timeout: float = setting(
        600.0,
        "Seconds to wait over Flower until all clients are connected. In `fedpfl run` they are there at once.",
        above=0,
    )
    round_timeout: float = setting(
        600.0,
        "Seconds to wait over Flower for a round's replies, training and tests together; at least a quarter is "
        "reserved for the tests. `fedpfl run` waits as long as its workers are alive.",
        above=0,
    )
    check_after: float = setting(
        60.0,
        "Seconds without a reply after which a device is asked whether it still works; a message that it lost is "
        "sent again.",
        above=0,
    )
    min_clients: int = setting(
        0,
        "Over Flower, minimum number of clients at the start. Nodes that give impossible answers are left out and "
        "named. 0: more than half; the start fails if a node is missing or silent after node-timeout. Other values: "
        "after node-timeout the run also starts without the missing nodes.",
        minimum=0,
    )
    max_client_samples: int = setting(
        1_000_000,
        "Maximum number of samples per client. A client that reports more is left out; this bounds its weight in "
        "means and what others compute from the number.",
        minimum=1,
    )
    schedule: str = setting(
        "synchronous",
        "synchronous: a round waits for all clients that it asked. buffered (FedBuff): a round ends with the first "
        "buffer-size replies while the other clients keep training; for methods whose rule is a mean.",
        choices=("synchronous", "buffered"),
    )
    buffer_size: int = setting(10, "buffered: number of replies per server step.", minimum=1)
    over_selection: float = setting(
        0.0,
        "Extra clients to ask, as a share of those that fraction-train asks, such as 0.3. The first replies count, "
        "up to the number that fraction-train gives; the round does not wait for the others.",
        minimum=0,
        maximum=10,
    )
    round_deadline: float = setting(
        0.0,
        "Over Flower, seconds after which a round's training ends with the replies received, if there are at least "
        "min-replies. 0: wait for all.",
        minimum=0,
    )
    round_deadline_pace: float = setting(
        0.0,
        "Like round-deadline, as a multiple of the median duration of the clients' last trainings. 0: none.",
        minimum=0,
    )
    replay: str = setting(
        "",
        "Run (name in output-dir, or folder) whose participation to repeat: each round asks the clients whose "
        "replies counted in that run.",
    )
    new_nodes: str = setting(
        "ignore",
        "Over Flower, what happens to a client that was missing at the start (min-clients) and connects later. "
        "join: it takes part from the next round. ignore: it does not take part in this run.",
        choices=("ignore", "join"),
    )
    forget_after: int = setting(
        0,
        "Number of consecutive rounds without an answer after which a client is no longer asked. Over Flower it "
        "takes part again once it answers a check. 0: it is asked in every round.",
        minimum=0,
    )
    devices_model: str = setting(
        "",
        "File that describes the clients' devices (docs/virtual-time.md). `fedpfl run` then computes the time that "
        "each round would take on them, and replies come in that order. Empty: no virtual time.",
    )
    min_replies: int = setting(
        1, "Minimum number of clients that must train in a round; with fewer, the run ends.", minimum=1
    )

    tracker: str = setting(
        "none",
        "Service that also receives the rounds, from the server's machine. wandb: Weights & Biases (extra wandb; "
        "WANDB_MODE=offline keeps everything in the run's folder). mlflow: MLflow (extra mlflow; "
        "MLFLOW_TRACKING_URI, or mlflow.db in output-dir).",
        choices=("none", "wandb", "mlflow"),
    )
    tracker_project: str = setting("fedpfl", "Project in Weights & Biases, or experiment in MLflow.")
    listeners: str = setting(
        "",
        "Your own listeners, which follow the run in the server's process (docs/callbacks.md): MODULE:NAME of a "
        "class or an object, separated by commas.",
    )

    @property
    def listener_names(self) -> list[str]:
        """The names in the setting ``listeners``."""
        return [name for part in self.listeners.split(",") if (name := part.strip())]

    def model_of(self, client: int) -> str:
        """Return a client's model."""
        text = self.client_models
        if not text:
            return self.model
        if not custom.is_reference(text):
            return next((model for numbers, model in client_models(self) if client in numbers), self.model)
        name = custom.call("client-models", text, custom.find("client-models", text), {"client": client})
        if not isinstance(name, str):
            allowed = f"returns {custom.article(name)} for client {client}, and must return the name of a model"
            raise ConfigError("client-models", text, allowed)
        return name

    def enough_clients(self, expected: int) -> int:
        """Return how many of the expected clients have to take part."""
        return min(self.min_clients, expected) or expected // 2 + 1

    @property
    def after_the_end(self) -> bool:
        """Whether the run is over, and clients get models of their own from its final arrays."""
        return self.personalise != "none"

    def asked(self, clients: int) -> int:
        """Return how many of that many clients train in a round."""
        return max(1, round(self.fraction_train * clients))

    @property
    def records_asked(self) -> bool:
        """Whether the clients that are asked follow from more than seed and round, and so are recorded."""
        pace = self.over_selection or self.round_deadline or self.round_deadline_pace
        words = self.replay or self.devices_model or self.new_nodes != "ignore" or self.schedule != "synchronous"
        return bool(pace or self.forget_after or words)

    def evaluates_in(self, server_round: int) -> bool:
        """Return whether the clients are tested in a round."""
        due = self.evaluate_every > 0 and server_round % self.evaluate_every == 0
        return due or server_round == self.num_server_rounds or self._between(server_round)

    def evaluates_after(self, server_round: int) -> bool:
        """Return whether what a round has made is tested, in it or at the start of the next."""
        if self.test_at == "end":
            return self.evaluates_in(server_round)
        # After the last round, too: the run may be continued.
        return server_round == self.num_server_rounds or self.evaluates_in(server_round + 1)

    def writes_models_after(self, server_round: int) -> bool:
        """Return whether clients that write their models do so after a round."""
        # With early-stop any round with tests may be the last.
        last = server_round == self.num_server_rounds or self.early_stop > 0
        return self._writes_models and (last or self.after_the_end or self._between(server_round))

    def _between(self, server_round: int) -> bool:
        every = self.device_model_every
        return self._writes_models and every > 0 and server_round % every == 0

    @property
    def _writes_models(self) -> bool:
        return self.device_models != "never" and (self.test_at == "end" or self.after_the_end)


@dataclass(frozen=True)
class Config:
    """Every setting of a run, in the parts that all methods use, and the method with its own."""

    run: RunSettings
    trainable: TrainableSettings
    data: DataSettings
    training: TrainingSettings
    server: ServerStepSettings
    robust: RobustSettings
    privacy: PrivacySettings
    method: Method = field(compare=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Config:
        """Check a flat mapping of keys; ``ConfigError`` if a value is not allowed, or values do not fit together."""
        run = s.parse(RunSettings, values)
        if run.run_name and not _RUN_NAME.fullmatch(run.run_name):
            raise ConfigError("run-name", run.run_name, "must be letters, digits, '.', '_' and '-', at most 100")
        for _, model in client_models(run):
            s.parse(RunSettings, {"model": model})
        for key in ("evaluate_global", "initial_weights"):
            if run.client_models and getattr(run, key):
                allowed = "cannot be combined with client-models: it is for one model"
                raise ConfigError(key.replace("_", "-"), getattr(run, key), allowed)
        if run.resume and not run.run_name:
            raise ConfigError("resume", True, "needs run-name, the run to resume")
        if run.after_the_end and not run.resume:
            allowed = "needs resume and run-name, the finished run: `fedpfl personalise RUN`"
            raise ConfigError("personalise", run.personalise, allowed)
        training, data = s.parse(TrainingSettings, values), DataSettings.of(values)
        if run.early_stop and not (data.validation_fraction and run.evaluate_every):
            raise ConfigError("early-stop", run.early_stop, "needs validation-fraction and evaluate-every above 0")
        if run.test_at == "start" and run.device_models == "always":
            raise ConfigError("device-models", "always", "must be auto or never with test-at = start")
        if run.test_at == "start" and run.missed_timeout and not run.after_the_end:
            allowed = "must be 0 with test-at = start: no client is tested at the end; use `fedpfl personalise`"
            raise ConfigError("missed-timeout", run.missed_timeout, allowed)
        if training.keep_momentum and not (training.optimizer == "sgd" and training.momentum):
            raise ConfigError("keep-momentum", True, "needs optimizer = sgd and momentum above 0")
        require_metrics(run.metrics, run.choose_by, training.loss)
        for text in run.listener_names:
            if not custom.is_reference(text):
                raise ConfigError("listeners", text, f"must be {custom.FORM}")
        method = find(run.method)
        own = method(s.parse(method.Settings, values, method.name), training, run.personal_head)
        needing = s.needing("validation-fraction", own.settings, method.name)
        if needing and not data.validation_fraction:
            allowed = f"must be above 0 for {needing}"
            raise ConfigError("validation-fraction", data.validation_fraction, allowed)
        if training.label_smoothing and (training.loss != CROSS_ENTROPY or "loss" in own.refuses):
            has_own = training.loss == CROSS_ENTROPY
            what = f"{method.name}, which has its own loss" if has_own else f"loss = {training.loss}"
            raise ConfigError("label-smoothing", training.label_smoothing, f"must be 0 for {what}")
        if training.class_weights != "none" and training.loss != CROSS_ENTROPY:
            raise ConfigError("class-weights", training.class_weights, f"must be none for loss = {training.loss}")
        trainable = s.parse(TrainableSettings, values)
        given = {"personal-head": run.personal_head, "trainable": trainable.trainable, "loss": training.loss}
        for key, why in own.refuses.items():
            if given[key] != REFUSABLE[key]:
                only = str(REFUSABLE[key]).lower()
                raise ConfigError(key, given[key], f"must be {only} for {method.name}: it {why}")
        server, privacy = s.parse(ServerStepSettings, values), s.parse(PrivacySettings, values)
        require_returned(own, "aggregation", own.aggregation, Aggregation, "a fedpfl.Aggregation")
        for extra in own.extras:
            require_returned(own, "extras", extra, Extra, "a list of fedpfl.Extra")
        rule = own.aggregation.rule
        if server.on and rule.no_server_step:
            allowed = f"must be none for {method.name}: its rule {rule.name!r} {rule.no_server_step}"
            raise ConfigError("server-optimizer", server.server_optimizer, allowed)
        robust = s.parse(RobustSettings, values)
        if robust.on and rule.no_robust_mean:
            why = f"its rule {rule.name!r} {rule.no_robust_mean}; there is update-norm-limit"
            allowed = f"must be none for {method.name}: {why}"
            raise ConfigError("robust-aggregation", robust.robust_aggregation, allowed)
        if robust.on and privacy.on and privacy.dp_where == "server":
            allowed = "must be none with dp-where = server: the noise is made for a sum"
            raise ConfigError("robust-aggregation", robust.robust_aggregation, allowed)
        _require_bufferable(run, own, privacy)
        require_covered(
            privacy, method.name, own.extras, evaluate_global=run.evaluate_global, diagnostics=run.diagnostics
        )
        return cls(run, trainable, data, training, server, robust, privacy, own)

    def of_client(self, client: int) -> Config:
        """Return the settings with a client's model."""
        model = self.run.model_of(client)
        return self if model == self.run.model else replace(self, run=replace(self.run, model=model))

    def with_model(self, model: str) -> Config:
        """Return the settings with the model that a device's owner has named."""
        s.parse(RunSettings, {"model": model})
        return replace(self, run=replace(self.run, model=model, client_models=""))

    def flat(self) -> dict[str, s.Value]:
        """Return the settings that this run uses, by key: the common ones and the method's own."""
        parted = (self.run, self.trainable, self.data, self.training, self.server, self.robust, self.privacy)
        common = {key: value for part in parted for key, value in s.items(part)}
        return {**common, **dict(s.items(self.method.settings, self.method.name))}

    def of_stored_arrays(self) -> dict[str, s.Value]:
        """Return the settings from which the form and the meaning of the arrays follow that a run stores."""
        of_run = {key: value for part in (self.run, self.training) for key, value in s.items(part) if key in _OF_ARRAYS}
        others = (self.trainable, self.server, self.privacy)
        common = {key: value for part in others for key, value in s.items(part)}
        return {**of_run, **common, **dict(s.items(self.method.settings, self.method.name))}


def client_models(run: RunSettings) -> Iterator[tuple[range, str]]:
    """Yield numbers of clients and their model, as ``client-models`` lists them; ``ConfigError`` for another form."""
    taken: set[int] = set()
    listed = "" if custom.is_reference(run.client_models) else run.client_models
    for part in filter(None, listed.split(",")):
        found = _CLIENTS.fullmatch(part.strip())
        if found is None:
            allowed = f"{part.strip()!r} must be a number or a range of clients, a colon and a model: 0-9:fedavg-cnn"
            raise ConfigError("client-models", run.client_models, allowed)
        first, last = int(found[1]), int(found[2] or found[1])
        numbers = range(first, last + 1)
        if not numbers or not taken.isdisjoint(numbers):
            allowed = f"{part.strip()!r} has {'no client' if not numbers else 'a client that has a model already'}"
            raise ConfigError("client-models", run.client_models, allowed)
        taken.update(numbers)
        yield numbers, found[3]


def _require_bufferable(run: RunSettings, method: Method, privacy: PrivacySettings) -> None:
    """Refuse buffered rounds where a reply means something only together with the others of its round."""
    if run.schedule == "synchronous":
        return
    rule = method.aggregation.rule
    alone = rule.attachments is Rule.attachments and rule.takes_shared and not rule.starts_with_all
    if rule.no_server_step or method.extras or not alone:
        why = f"its rule {rule.name!r} {rule.no_server_step or 'sends or gets more than the shared arrays'}"
        raise ConfigError("schedule", run.schedule, f"must be synchronous for {method.name}: {why}")
    others = {
        "dp-noise-multiplier": privacy.on, "evaluate-global": run.evaluate_global,
        "over-selection": run.over_selection, "forget-after": run.forget_after,
        "round-deadline": run.round_deadline, "round-deadline-pace": run.round_deadline_pace,
        "test-at = start": run.test_at == "start", "min-replies above buffer-size": run.min_replies > run.buffer_size,
    }  # fmt: skip
    if on := [key for key, value in others.items() if value]:
        raise ConfigError("schedule", run.schedule, f"cannot be combined with {', '.join(on)}")


def sections() -> list[tuple[str, type, str]]:
    """Return (title, settings class, key prefix) of every part, the methods last."""
    common: list[tuple[str, type, str]] = [
        ("Run", RunSettings, ""), ("What trains", TrainableSettings, ""), ("Data", DataSettings, ""),
        ("Local training", TrainingSettings, ""),
        ("Server's step", ServerStepSettings, ""), ("False clients", RobustSettings, ""),
        ("Differential privacy", PrivacySettings, ""),
    ]  # fmt: skip
    return common + [(f"Method {m.name}", m.Settings, m.name) for m in known().values() if s.keys(m.Settings)]


def known_keys() -> list[str]:
    """Return every key that a run may set."""
    return [key for _, cls, prefix in sections() for key in s.keys(cls, prefix)]


def owners() -> dict[str, str]:
    """Return the method of every setting that belongs to one method, by key."""
    return {key: m.name for m in known().values() for key in s.keys(m.Settings, m.name)}


def unused(values: Mapping[str, Any], method: str) -> list[str]:
    """Name, in one line, the settings of other methods that are not at their defaults; an empty list if there are none.

    Flower hands over every key that the app has, so that only another value shows that a setting was given.
    """
    given: dict[str, list[str]] = {}
    for other in known().values():
        for key, default in s.items(other.Settings(), other.name):
            if other.name != method and values.get(key, default) != default:
                given.setdefault(other.name, []).append(key)
    named = "; ".join(f"{', '.join(keys)} of {name}" for name, keys in given.items())
    return [f"settings of other methods, which {method} does not use: {named}"] if given else []


def untuned(config: Config) -> list[str]:
    """Return a line for ``tune-epochs`` that changes nothing; an empty list if it does or is 0."""
    epochs, method = config.training.tune_epochs, config.method
    own = f"tune-epochs = {epochs} changes nothing: {method.name} adapts models to a test in its own way"
    return [own] if epochs and adapts_itself(type(method)) else []


def idle(config: Config, real: bool) -> list[str]:
    """Return a line for each setting of the rounds that changes nothing; ``real``: the clients are on devices."""
    run, found = config.run, []
    unwritten = run.device_models == "auto" and not real and not tests_more_than_arrays(config.method)
    if run.device_model_every and (run.device_models == "never" or unwritten):
        whose = "clients of a simulation" if run.device_models == "auto" else "clients"
        why = f"with device-models = {run.device_models}, {whose} write no models"
        found.append(f"device-model-every does nothing: {why}")
    if run.buffer_size != RunSettings.buffer_size and run.schedule != "buffered":
        found.append(f"buffer-size does nothing with schedule = {run.schedule}")
    if run.new_nodes != RunSettings.new_nodes and not real:
        found.append(f"new-nodes = {run.new_nodes} does nothing: all clients of a simulation are there from the start")
    if not (real or run.devices_model or run.replay):
        timed = {"round-deadline": run.round_deadline, "round-deadline-pace": run.round_deadline_pace}
        why = "does nothing: a simulation measures no time without devices-model"
        found += [f"{key} {why}" for key, value in timed.items() if value]
    return found


def scored(config: Config) -> list[str]:
    """Return a line on what is recorded as accuracy where the loss is not for classes; else an empty list."""
    training = config.training
    return [] if training.kind.classes else [f"loss = {training.loss}: accuracy means {training.kind.called}"]


def know_method(values: Mapping[str, Any]) -> None:
    """Make the settings of a custom method known, wherever its class comes from, if ``values`` name one."""
    named = values.get("method")
    if isinstance(named, str) and custom.is_custom("method", named):
        find(named)


def check_keys(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a key that no part of the program knows, or a method that cannot be found."""
    know_method(values)
    keys = known_keys()
    for key, value in values.items():
        if key not in keys:
            hint = did_you_mean(key, keys) or "; `fedpfl config` lists all keys"
            raise ConfigError(key, value, "there is no such setting" + hint)
