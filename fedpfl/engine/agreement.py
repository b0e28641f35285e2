"""The task that clients agree on: that of most of them. Others are left out, each by name and with the reason."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING, getLogger
from typing import Any, NamedTuple

from torch import nn

from ..core.errors import ConfigError, FedpflError, LayoutError, printable, reasons
from ..core.layout import Layout
from ..core.metric_bounds import CLASSES_OVER_MEDIAN, FEW_CLASSES
from ..core.name_lists import other_than, shape_of, shown
from ..core.payload import Payload
from ..core.references import short_name
from ..core.server_view import Client
from ..core.sharing import Sharing
from ..core.slices import slice_layout
from ..models.sources import split_width
from ..results.board_names import shown_on_boards
from ..setup.assembly import assemble, extras_of
from ..setup.config import Config, told_as_clients_model

logger = getLogger("flwr")

OTHER_DATA = "its data differ from the others'"
OTHER_CLASSES = "its classes have other names, or another order, than those of most clients"
OTHER_DIVISION = "divides the data differently (another version of NumPy or of the data set?)"


class Description(NamedTuple):
    """What a client tells of its task; ``core/metric_bounds.py`` has checked the numbers."""

    num_clients: int
    shape: tuple[int, ...]  # of one sample
    vocabulary: int  # different tokens of texts, else 0
    classes: int
    class_names: str
    columns: str
    data: str  # a hash of common samples as they were read, or one of a device's own that it alone can make
    division: int | None  # the checksum of the division of common data; None of data of its own
    layout: str  # of the shared arrays
    model: str  # that the device's owner has named
    extras: str  # of that model
    threads: int
    remarks: tuple[str, ...]
    samples: tuple[int, int]  # to train and to test

    @classmethod
    def of(cls, answer: Payload) -> Description:
        """Read a client's answer to the query."""
        said, counted = answer.config, answer.metrics
        division = said.get("division")
        return cls(
            int(said["num-clients"]), shape_of(str(said["input-shape"])), int(said.get("vocabulary", 0)),
            int(said["num-classes"]), str(said.get("classes", "")), str(said.get("columns", "")),
            str(said.get("data", "")), None if division is None else int(division), str(said["layout"]),
            str(said.get("model", "")), str(said.get("extras", "")), int(said.get("threads", 0)),
            tuple(str(said.get("remarks", "")).splitlines()),
            (int(counted["train-samples"]), int(counted["test-samples"])),
        )  # fmt: skip

    @property
    def inputs(self) -> str:
        """What goes into the model, in words."""
        return _shape_in_words(self.shape, self.vocabulary)


@dataclass(frozen=True)
class Agreement:
    """The task that clients have in common."""

    model: nn.Module  # what every client starts from, with the most classes that a client has
    sharing: Sharing  # which of its arrays travel
    descriptions: Mapping[int, Description]  # of the clients that take part
    input_shape: tuple[int, ...]  # of one sample
    classes: list[int]  # each client's number; an absent client counts as one with as many as most others have
    vocabulary: int  # different tokens of texts, else 0

    @property
    def division(self) -> int | None:
        """The checksum of the division of common data; None if a client has data of its own."""
        divisions = {one.division for one in self.descriptions.values()}
        return None if None in divisions else divisions.pop()

    @property
    def names(self) -> dict[str, str]:
        """The texts that stand for the names of columns and of classes, where all clients have the same."""
        texts_of = {
            "columns": {one.columns for one in self.descriptions.values()},
            "classes": {one.class_names for one in self.descriptions.values()},
        }
        return {key: texts.pop() for key, texts in texts_of.items() if len(texts) == 1 and texts != {""}}

    @property
    def data(self) -> dict[str, Any]:
        """What a run records of its samples: the hash of common ones, or that of each client."""
        each = {str(client): one.data for client, one in self.descriptions.items() if one.data}
        if self.division is not None and len(set(each.values())) == 1:
            return {"data": next(iter(each.values()))}
        return {"data_of_clients": each} if each else {}

    @property
    def clients(self) -> list[Client]:
        """The clients with their numbers of samples, and those that are absent."""
        there = self.descriptions
        return [
            Client(i, *(there[i].samples if i in there else (0, 0)), absent=i not in there)
            for i in range(len(self.classes))
        ]

    @property
    def layouts(self) -> dict[int, Layout]:
        """The layouts of clients that have a slice of the shared arrays."""
        whole = self.sharing.layout
        texts = {client: one.layout for client, one in self.descriptions.items() if one.layout != whole.to_text()}
        made = {text: slice_layout(whole, text) for text in set(texts.values())}
        return {client: made[text] for client, text in texts.items()}

    @property
    def threads(self) -> list[int]:
        """The number of threads with which each client computes; 0 of one that is absent."""
        there = self.descriptions
        return [there[i].threads if i in there else 0 for i in range(len(self.classes))]

    @property
    def models(self) -> dict[str, str]:
        """The models that devices' owners have named, by client."""
        return {str(client): one.model for client, one in self.descriptions.items() if one.model}

    @property
    def remarks(self) -> list[str]:
        """What clients remark on common data, each remark once, and which clients are absent."""
        remarks = list(dict.fromkeys(line for one in self.descriptions.values() for line in one.remarks))
        if self.models:
            models = ", ".join(f"client {client} {model}" for client, model in self.models.items())
            remarks.append(f"devices have their own models: {models}")
        if self.data and self.division is None:
            effect = "a resumed run notices that they have changed, a comparison or a grid does not"
            remarks.append(f"clients have separate data: {effect}")
        if absent := [client.id for client in self.clients if client.absent]:
            count, missing = len(self.classes), shown_on_boards(absent)
            remarks.append(f"{count - len(absent)} of {count} clients take part in this run; missing: {missing}")
        return remarks


def agree(config: Config, answers: Mapping[int, Payload]) -> Agreement:
    """Build the model of most clients' task; leave out the clients that have another task or model."""
    there = _Clients(answers, lambda total: config.run.enough_clients(total))
    if config.run.client_models:
        _require_same_sharing(config, there)
    config = _with_whole_model(config)
    there.require_usual(lambda one: one.inputs, OTHER_DATA)
    there.require_columns(_usual(one.columns for one in there.told.values()), "most others'")
    there.require_usual(lambda one: one.division, OTHER_DIVISION)
    median = statistics.median(one.classes for one in there.told.values())
    most = max(FEW_CLASSES, CLASSES_OVER_MEDIAN * median)
    many = f"more than {CLASSES_OVER_MEDIAN} times the median of all clients, {median:g}"
    there.leave_out({
        client: f"num-classes = {one.classes}: {many}" for client, one in there.told.items() if one.classes > most
    })  # fmt: skip
    if len({one.layout for one in there.told.values()}) > 1:
        there.require_usual(_with_classes, OTHER_DATA)
    shape, vocabulary, classes = there.first.shape, there.first.vocabulary, there.classes()
    built = assemble(config, shape, max(classes), vocabulary=vocabulary)
    if len(set(classes)) > 1 and built[1].layout.to_text() not in {one.layout for one in there.told.values()}:
        there.require_usual(_with_classes, "its number of classes contradicts its layout")
        if max(there.classes()) != max(classes):
            built = assemble(config, shape, max(there.classes()), vocabulary=vocabulary)
        classes = there.classes()
    return _agreed(config, there, built, (shape, classes, vocabulary))


def agree_with(config: Config, answers: Mapping[int, Payload], task: Mapping[str, Any]) -> Agreement:
    """Build the model of a run that is over; leave out the clients that have another task, data or model."""
    config, there, names = _with_whole_model(config), _Clients(answers, lambda total: 1), task.get("names", {})
    shape, vocabulary, division = shape_of(task["input_shape"]), task.get("vocabulary", 0), task.get("division")
    run = _shape_in_words(shape, vocabulary)
    there.leave_out({
        client: f"{OTHER_DATA}: {one.inputs}, the run had {run}"
        for client, one in there.told.items() if one.inputs != run
    })  # fmt: skip
    if columns := names.get("columns"):
        there.require_columns(columns, "the run's")
    there.leave_out({
        client: f"divides the data differently than the run did: {one.division}, not {division}"
        for client, one in there.told.items() if None not in (division, one.division) and one.division != division
    })  # fmt: skip
    total = max(task["clients"], there.total)
    built = assemble(config, shape, task["num_classes"], vocabulary=vocabulary)
    return _agreed(config, there, built, (shape, [task["num_classes"]] * total, vocabulary), names.get("classes"))


class _Clients:
    """The clients that are still there, in order; ``least`` tells how many of all have to stay."""

    def __init__(self, answers: Mapping[int, Payload], least: Callable[[int], int]) -> None:
        self.told = {client: Description.of(answers[client]) for client in sorted(answers)}
        self.total = self.first.num_clients
        self._least = least(self.total)

    @property
    def first(self) -> Description:
        """What the first client tells."""
        return next(iter(self.told.values()))

    def classes(self) -> list[int]:
        """Return each client's number of classes, of those that are absent the usual one."""
        usual = _usual(one.classes for one in self.told.values())
        return [self.told[i].classes if i in self.told else usual for i in range(self.total)]

    def leave_out(self, why: Mapping[int, str]) -> None:
        """Leave clients out by name; raise ``FedpflError`` if too few remain."""
        self.told = {client: one for client, one in self.told.items() if client not in why}
        if why and len(self.told) < self._least:
            raise FedpflError(reasons(why, "client", shown=shown_on_boards))
        for client, reason in why.items():
            logger.log(WARNING, "fedpfl: client %s cannot take part: %s", shown_on_boards([client]), reason)

    def require_usual(self, fact: Callable[[Description], Hashable], why: str) -> None:
        """Leave out the clients that differ in something from most others that have it."""
        facts = {client: fact(one) for client, one in self.told.items() if fact(one) is not None}
        if facts:
            usual = _usual(facts.values())
            self.leave_out({i: f"{why}: {mine}, most have {usual}" for i, mine in facts.items() if mine != usual})

    def require_columns(self, wanted: str, whose: str) -> None:
        """Leave out the clients whose columns have other names, or another order."""
        other = {client: one.columns for client, one in self.told.items() if one.columns != wanted}
        self.leave_out({i: f"its columns are not {whose}; {other_than(text, wanted)}" for i, text in other.items()})


def _agreed(
    config: Config, there: _Clients, built: tuple[nn.Module, Sharing], task: tuple[tuple[int, ...], list[int], int],
    class_names: str | None = None,
) -> Agreement:  # fmt: skip
    """Leave out who has another model, other classes where they are shared, or sends other arrays; return the task."""
    (model, sharing), (shape, classes, vocabulary) = built, task
    layout, refused = sharing.layout.to_text(), dict[int, str]()
    for client, one in there.told.items():
        try:
            if config.method.aggregation.rule.takes_slices:
                require_width(config, config.run.named_model(one.model or config.run.model))
                slice_layout(sharing.layout, one.layout)
            elif one.layout != layout:
                sharing.layout.require(Layout.from_text(one.layout))
        except ConfigError as error:
            refused[client] = str(error)
        except LayoutError as error:
            refused[client] = f"has another model: {printable(str(error), 500)}"
    try:
        there.leave_out(refused)
    except FedpflError as error:
        raise LayoutError(str(error)) from error
    usual = _usual(one.class_names for one in there.told.values()) if class_names is None else class_names
    other = [client for client, one in there.told.items() if one.class_names != usual]
    if other and _depends_on_classes(config, shape, max(classes), vocabulary):
        there.leave_out(dict.fromkeys(other, OTHER_CLASSES))
    extras = extras_of(config, model, sharing).to_text()
    there.leave_out({
        client: f"its own model {one.model} and {config.run.model} differ in what {config.method.name} sends: "
        f"{printable(one.extras, 300)}; the server has {extras}"
        for client, one in there.told.items() if one.model and one.extras != extras
    })  # fmt: skip
    return Agreement(model, sharing, there.told, shape, classes, vocabulary)


def _depends_on_classes(config: Config, shape: tuple[int, ...], classes: int, vocabulary: int) -> bool:
    """Return whether what is shared depends on the number of classes."""
    sent = []
    for count in (classes, classes + 1):
        model, sharing = assemble(config, shape, count, vocabulary=vocabulary)
        sent.append((sharing.layout.entries, extras_of(config, model, sharing).to_text()))
    return sent[0] != sent[1]


def _require_same_sharing(config: Config, there: _Clients) -> None:
    """Refuse ``client-models`` that name clients that are not there, or whose models differ in what is shared."""
    named = [client for numbers, _ in config.run.listed_models() for client in numbers]
    if max(named, default=0) >= there.total:
        allowed = f"names client {max(named)}; the clients are 0 … {there.total - 1}"
        raise ConfigError("client-models", config.run.client_models, allowed)
    chosen_models = {config.run.model_of(i): config.of_client(i) for i in range(there.total)}
    if config.method.aggregation.rule.takes_slices:
        for name in chosen_models:
            require_width(config, name)
        return
    variants = []
    for name, chosen in chosen_models.items():
        with told_as_clients_model(name != config.run.model):
            shape, classes, vocabulary = there.first.shape, max(there.classes()), there.first.vocabulary
            model, sharing = assemble(chosen, shape, classes, vocabulary=vocabulary)
        variants.append((name, sharing.layout, extras_of(chosen, model, sharing).shapes))
    first, layout, shapes = variants[0]
    for name, other, theirs in variants[1:]:
        differ = [extra for extra in shapes if shapes[extra] != theirs[extra]]
        if other.entries != layout.entries:
            differ = ["shared arrays", *differ]
        if differ:
            allowed = f"{first} and {name} differ in what {config.method.name} sends: {', '.join(differ)}"
            raise ConfigError("client-models", config.run.client_models, allowed)


def require_width(config: Config, name: str) -> None:
    """Refuse a client's model that is not the run's at a width, for a rule that takes slices."""
    plain, whole = split_width(name)[0], split_width(config.run.model)[0]
    if plain != whole:
        shown_names = f"{short_name(plain)} is not {short_name(whole)} at a width"
        allowed = f"{shown_names}: {config.method.name} takes widths, such as 0-9:@0.5"
        raise ConfigError("client-models", config.run.client_models or name, allowed)


def _with_whole_model(config: Config) -> Config:
    """Return the settings with the model that has all that is shared."""
    return config if config.method.aggregation.rule.takes_slices else config.of_client(0)


def _usual(values: Iterable[Any]) -> Any:
    """Return the value that most have."""
    return Counter(values).most_common(1)[0][0]


def _shape_in_words(shape: tuple[int, ...], tokens: int) -> str:
    return f"{shown(shape)}{f' of {tokens} tokens' * bool(tokens)}"


def _with_classes(one: Description) -> str:
    return f"{one.inputs} with {one.classes} classes"
