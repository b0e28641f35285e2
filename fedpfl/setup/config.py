"""All settings of a run, put together from the parts of the program that use them.

Flower hands every process the same flat mapping (``pyproject.toml``, overridden by ``--run-config``);
:meth:`Config.parse` checks it and cuts it into the settings of each part.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Iterator, Mapping, TypeVar

from ..core import references, user_code
from ..core import settings as s
from ..core.errors import ConfigError
from ..core.extra_arrays import Extra
from ..core.layout import DTYPES
from ..core.metrics import require as require_metrics
from ..core.option import Option, TaskFacts
from ..core.settings import setting
from ..data.settings import DataSettings
from ..methods import find
from ..methods import names as method_names
from ..models.sources import WIDTH_FORM, has_width
from ..models.sources import choices as model_names
from ..models.sources import sources as model_sources
from ..training.settings import TrainingSettings
from .options import OPTIONS
from .options.privacy import PrivacySettings

if TYPE_CHECKING:
    from ..methods import Method

S = TypeVar("S")
# Of client-models, at most six digits: what comes from the network must not make a range of billions.
_CLIENTS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?:(\S+)")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@contextmanager
def told_as_clients_model(is_it: bool = True) -> Iterator[None]:
    """Tell an error of a model under ``client-models`` if that is the setting that names it."""
    try:
        yield
    except ConfigError as error:
        if error.key != "model" or not is_it:
            raise
        raise ConfigError("client-models", error.value, error.message) from error


@dataclass(frozen=True)
class RunSettings:
    """What is run, for how long, and where the results go."""

    method: str = setting(
        "fedper",
        "Method that trains the models.",
        choices=method_names,
        open_to={references.FORM: references.is_reference},
        tags="own code",
    )
    model: str = setting(
        "auto",
        "Model; its input and output sizes follow from the data. auto: small-cnn for images, cnn-1d or gru for series, "
        "transformer or decoder for texts, mlp for other numbers.",
        choices=model_names,
        open_to={**model_sources(), references.FORM: references.is_reference, WIDTH_FORM: has_width},
        tags="own code",
    )
    client_models: str = setting(
        "",
        "Models of some clients; the others have `model`. Shared arrays must have the same shapes in all models; "
        "heterofl and fedrolex take widths of the run's model.",
        tags="own code",
        form="numbers and models, such as 0-9:fedavg-cnn,12:resnet8 or 0-9:@0.5, or MODULE:NAME, a function from a "
        "client number to a model's name",
    )
    num_server_rounds: int = setting(5, "Number of rounds.", minimum=1, tags="free whole")
    fraction_train: float = setting(
        1.0,
        "Share of the clients asked to train in each round (join rate); at least one client.",
        above=0,
        maximum=1,
        tags="own server",
    )
    personal_head: bool = setting(
        False,
        "Keep the classifier (the model's last layer) on each client, even if the method shares it.",
        tags="refusable",
    )
    new_clients: float = setting(
        0.0,
        "Share of the clients held out: they do not train and do not count in accuracies. `fedpfl personalise` "
        "makes models for them afterwards.",
        minimum=0,
        maximum=0.9,
        tags="server",
    )
    initial_weights: str = setting(
        "",
        "Initial weights, at the same path on every machine. A last layer of another shape is initialised at random.",
        tags="place file built",
        form="a file: safetensors, or with PyTorch 2.10 and later a state dict",
    )
    download_weights: bool = setting(
        False,
        "Whether torchvision:, timm: and hf: may download pretrained weights, instead of random ones, or hf:'s "
        "local folder.",
        tags="built",
    )
    evaluate_every: int = setting(
        1, "Rounds between evaluations of all clients. 0: only after the last round.", minimum=0, tags="rounds server"
    )
    test_at: str = setting(
        "end",
        "When clients are tested. end: after a round, with the new shared arrays. start: before they train, as on "
        "FedReG's testbed; `fedpfl personalise` tests the last round's result.",
        choices=("end", "start"),
        tags="loop server",
    )
    early_stop: int = setting(
        0,
        "Stop after this number of rounds without a better mean accuracy on the validation samples. 0: no early stop.",
        minimum=0,
        tags="free loop server",
    )
    metrics: str = setting(
        "",
        "Metrics that tests measure in addition to accuracy and loss.",
        form="a list of balanced-accuracy, top-5-accuracy, precision-macro, recall-macro, f1-macro, f1-weighted, "
        "auroc, average-precision; with loss = multi-label also f1-micro, with mse mae, rmse, r2, with segmentation "
        "iou, dice, with next-token perplexity; and of functions MODULE:NAME",
        tags="code built tests",
    )
    choose_by: str = setting(
        "accuracy",
        "Metric on the validation samples that chooses the best round, controls early-stop and compares settings.",
        form="accuracy, loss, or one of metrics",
        tags="loop",
    )
    seed: int = setting(1, "Seed of every random choice.", minimum=0, tags="repeat")
    output_dir: str = setting(
        "~/.fedpfl/runs",
        "Place of run folders, on the server's machine.",
        tags="place server free idle loop",
        form="a folder",
    )
    state_dir: str = setting(
        "~/.fedpfl/state",
        "Place of a client's personal arrays, on the client's machine.",
        tags="place free idle",
        form="a folder",
    )
    device_models: str = setting(
        "auto",
        "Whether a client writes its whole personalised model below state-dir after the last round. auto: devices "
        "do, and clients of a simulation that adapt it to the test.",
        choices=("auto", "always", "never"),
        tags="free idle built",
    )
    run_name: str = setting(
        "",
        "Name of the run's folder. Empty: made from method, data set and time.",
        tags="own free idle loop server",
        form="a new folder's name",
    )
    resume: bool = setting(
        False, "Continue the run called run-name after its last finished round.", tags="own free idle loop server"
    )
    wire_dtype: str = setting("float32", "Number type of the float arrays in messages.", choices=DTYPES)
    node_timeout: float = setting(
        600.0,
        "Seconds to wait over Flower until all clients are connected.",
        above=0,
        tags="free idle built server",
    )
    round_timeout: float = setting(
        600.0,
        "Seconds to wait over Flower for a round's replies; at least a quarter is for the tests. `fedpfl run` waits "
        "as long as its workers live.",
        above=0,
        tags="free idle server",
    )
    check_after: float = setting(
        60.0,
        "Seconds without a reply after which a device is asked whether it still works.",
        above=0,
        tags="free idle loop server",
    )
    min_clients: int = setting(
        0,
        "Over Flower, minimum number of clients at the start; 0: more than half. The run starts after node-timeout "
        "without those that are missing or silent, and names them.",
        minimum=0,
        tags="free idle built server",
    )
    max_client_samples: int = setting(
        1_000_000,
        "Maximum number of samples per client. A client that reports more is left out.",
        minimum=1,
        tags="free idle server",
    )
    min_replies: int = setting(
        1,
        "Minimum number of clients that must train in a round; with fewer, the run ends.",
        minimum=1,
        tags="free repeat server",
    )

    def model_of(self, client: int) -> str:
        """Return the model of a client, which is the run's own if it is given none."""
        text = self.client_models
        if not text:
            return self.model
        if not references.is_reference(text):
            listed = next((model for numbers, model in self.listed_models() if client in numbers), self.model)
            return self.named_model(listed)
        name = user_code.call("client-models", text, user_code.find("client-models", text), {"client": client})
        if not isinstance(name, str):
            allowed = f"returns {references.article(name)} for client {client}; it must return a model's name"
            raise ConfigError("client-models", text, allowed)
        return self.named_model(name)

    def named_model(self, name: str) -> str:
        """Return the name of a model where it may be a width of the run's: ``@0.5``."""
        return self.model + name if name.startswith("@") else name

    def listed_models(self) -> Iterator[tuple[range, str]]:
        """Yield numbers of clients and their model, as ``client-models`` lists them; ``ConfigError`` for a mistake."""
        taken: set[int] = set()
        listed = "" if references.is_reference(self.client_models) else self.client_models
        for part in filter(None, listed.split(",")):
            match = _CLIENTS.fullmatch(part.strip())
            if match is None:
                allowed = (
                    f"{part.strip()!r} must be a number or a range of clients, a colon and a model: 0-9:fedavg-cnn"
                )
                raise ConfigError("client-models", self.client_models, allowed)
            first, last = int(match[1]), int(match[2] or match[1])
            numbers = range(first, last + 1)
            if not numbers or not taken.isdisjoint(numbers):
                allowed = f"{part.strip()!r} has {'no client' if not numbers else 'a client that already has a model'}"
                raise ConfigError("client-models", self.client_models, allowed)
            taken.update(numbers)
            yield numbers, match[3]

    def enough_clients(self, expected: int) -> int:
        """Return how many of the expected clients have to take part."""
        return min(self.min_clients, expected) or expected // 2 + 1

    def asked(self, clients: int) -> int:
        """Return how many of that many clients train in a round."""
        return max(1, round(self.fraction_train * clients))

    def evaluates_in(self, server_round: int) -> bool:
        """Return whether the clients are tested in a round."""
        due = self.evaluate_every > 0 and server_round % self.evaluate_every == 0
        return due or server_round == self.num_server_rounds

    def evaluates_after(self, server_round: int) -> bool:
        """Return whether what a round has made is tested, in it or at the start of the next."""
        if self.test_at == "end":
            return self.evaluates_in(server_round)
        # After the last round, too: the run may be resumed with more.
        return server_round == self.num_server_rounds or self.evaluates_in(server_round + 1)

    def writes_models_after(self, server_round: int) -> bool:
        """Return whether clients that write their models do so after a round."""
        # With early-stop any round with tests may be the last.
        last = server_round == self.num_server_rounds or self.early_stop > 0
        return self.writes_models and last

    @property
    def writes_models(self) -> bool:
        """Whether clients that are asked to write their models can: they do so at tests after the training."""
        return self.device_models != "never" and self.test_at == "end"

    def check(self, config: Config) -> None:
        """Raise ``ConfigError`` for settings that do not fit together."""
        if self.run_name and not _RUN_NAME.fullmatch(self.run_name):
            raise ConfigError("run-name", self.run_name, "must be letters, digits, '.', '_' and '-', at most 100")
        with told_as_clients_model():
            for _, model in self.listed_models():
                s.parse(RunSettings, {"model": model})
        if self.model.startswith("@"):
            raise ConfigError("model", self.model, "is only a width; name a model with it: small-cnn@0.5")
        if self.client_models and self.initial_weights:
            allowed = "cannot be combined with client-models: it is for one model"
            raise ConfigError("initial-weights", self.initial_weights, allowed)
        if self.resume and not self.run_name:
            raise ConfigError("resume", True, "needs run-name, the run to resume")
        if self.early_stop and not (config.data.validation_fraction and self.evaluate_every):
            allowed = "needs validation-fraction and evaluate-every above 0, also for data with a validation part"
            raise ConfigError("early-stop", self.early_stop, allowed)
        if self.test_at == "start" and self.device_models == "always":
            raise ConfigError("device-models", "always", "must be auto or never with test-at = start")
        require_metrics(self.metrics, self.choose_by, config.training.loss)

    def remarks(self, config: Config) -> list[str]:
        """Tell where downloaded weights expect images of another scale."""
        scale, name = config.data.normalize, self.model
        if not self.download_weights or scale == "imagenet" or not name.startswith(("torchvision:", "timm:")):
            return []
        return [f'{name}: weights that were trained on ImageNet expect normalize = "imagenet", not {scale}']


@dataclass(frozen=True)
class Config:
    """Every setting of a run, in the parts that all methods use, and the method with its own."""

    run: RunSettings
    data: DataSettings
    training: TrainingSettings
    options: tuple[Option, ...]
    method: Method = field(compare=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Config:
        """Check a flat mapping of keys; ``ConfigError`` if a value is not allowed, or values do not fit together."""
        if "method" in values:
            values = {**values, "method": references.as_named(values["method"])}
        run, data, training = s.parse(RunSettings, values), DataSettings.of(values), s.parse(TrainingSettings, values)
        method = find(run.method)
        settings = s.parse(method.Settings, values, method.name)
        instance = user_code.guarded("method", run.method, method)(settings, training, run.personal_head)
        config = cls(
            run, data, training, tuple(option(s.parse(option.Settings, values)) for option in OPTIONS), instance
        )
        config = config.put(config.of(PrivacySettings).calibrated(run.num_server_rounds, run.fraction_train))
        run.check(config)
        training.check(instance)
        config._check_method()
        for option in config.options:
            option.check(config)
        return config

    def _check_method(self) -> None:
        """Raise ``ConfigError`` for settings that the method cannot have, and for what its author got wrong."""
        from ..methods.base import Aggregation, require_returned

        method, values = self.method, self.flat()
        usual = {key: field.default for key, field in self._fields().items()}
        # A property of an author's own may raise.
        refuses, aggregation, extras = (
            user_code.guarded("method", f"{method.name}.{name}", partial(getattr, method, name))()
            for name in ("refuses", "aggregation", "extras")
        )
        for key, why in refuses.items():
            if key not in (refusable := self._tagged("refusable")):
                raise ConfigError("method", method.name, f"refuses {key!r}; a method can refuse {', '.join(refusable)}")
            if (self.training.labels if key == "loss" else values[key]) != usual[key]:
                raise ConfigError(key, values[key], f"must be {str(usual[key]).lower()} for {method.name}: it {why}")
        require_returned(method, "aggregation", aggregation, Aggregation, "a fedpfl.Aggregation")
        if not aggregation.rule.combines:
            self.require_combined()
        for extra in extras:
            require_returned(method, "extras", extra, Extra, "a list of fedpfl.Extra")

    def require_combined(self) -> None:
        """Raise ``ConfigError`` for settings of what clients send, as they send nothing of their models."""
        usual = {key: field.default for key, field in self._fields().items()}
        for key, value in sorted(self._tagged("combining").items()):
            if value != usual[key]:
                raise ConfigError(key, value, f"must be {usual[key]} for {self.method.name}: its clients share nothing")

    def of(self, settings: type[S]) -> S:
        """Return the settings of an option by their class."""
        return next(option.settings for option in self.options if type(option.settings) is settings)

    def put(self, settings: Any) -> Config:
        """Return the settings with those of an option replaced."""
        old = type(settings)
        new = (replace(o, settings=settings) if type(o.settings) is old else o for o in self.options)
        return replace(self, options=tuple(new))

    def wants(self, kind: type[Option]) -> bool:
        """Return whether an option does anything in this run."""
        return next(option for option in self.options if type(option) is kind).wanted(self)

    def remarks(self, task: TaskFacts) -> list[str]:
        """Return remarks on the settings, for users to read before round 1."""
        from ..methods.base import adapts_itself

        epochs, name, training = self.training.tune_epochs, self.method.name, self.training
        lines = [f"not used with {reason}: {', '.join(keys)}" for reason, keys in self.idle()]
        lines += [line for option in self.options for line in option.remarks(self, task)]
        if epochs and adapts_itself(type(self.method)):
            lines.append(f"tune-epochs = {epochs} changes nothing: {name} adapts models to a test in its own way")
        if not training.kind.classes:
            lines.append(f"loss = {training.labels}: accuracy means {training.kind.called}")
        return [*lines, *self.run.remarks(self)]

    def idle(self, **instead: s.Value) -> list[tuple[str, list[str]]]:
        """Return settings that have no effect beside the others, or others ``instead``, behind the reason."""
        values = {**self.flat(), **instead}
        return [reason for part in self._parts() for reason in s.idle(part, values).items()]

    def of_client(self, client: int) -> Config:
        """Return the settings with a client's model."""
        model = self.run.model_of(client)
        return self if model == self.run.model else replace(self, run=replace(self.run, model=model))

    def with_model(self, model: str) -> Config:
        """Return the settings with the model that a device's owner has named."""
        s.parse(RunSettings, {"model": model})
        return replace(self, run=replace(self.run, model=self.run.named_model(model), client_models=""))

    def flat(self) -> dict[str, s.Value]:
        """Return the settings that this run uses, by key: the common ones and the method's own."""
        common = {key: value for part in self._parts() for key, value in s.items(part)}
        return {**common, **dict(s.items(self.method.settings, self.method.name))}

    def _parts(self) -> list[Any]:
        return [self.run, self.data, self.training, *(option.settings for option in self.options)]

    def _fields(self) -> dict[str, Field[Any]]:
        """Return the settings that all methods have, by key."""
        return {key: field for part in self._parts() for key, field in s.by_key(type(part)).items()}

    def _tagged(self, tag: str) -> dict[str, s.Value]:
        values = self.flat()
        return {key: values[key] for key, field in self._fields().items() if tag in field.metadata["tags"]}
