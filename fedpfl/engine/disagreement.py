"""What becomes of clients whose task, data or model is another than that of most: they are left out by name."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from logging import WARNING, getLogger
from typing import Any

from ..core.claims import CLASSES_OVER_MEDIAN, FEW_CLASSES
from ..core.errors import ConfigError, FedpflError, LayoutError, printable, reasons
from ..core.extras import Extras
from ..core.layout import Layout
from ..core.names import other_than, shape_of, shown
from ..core.payload import Payload
from ..setup.assembly import assemble, extras_of
from ..setup.client_models import client_models
from ..setup.config import Config
from .agreement import Agreement, Descriptions, task_of

logger = getLogger("flwr")

OTHER_DATA = "its data differ from the others'"
OTHER_CLASSES = "its classes have other names, or another order, than those of most clients"


def settle(config: Config, descriptions: Descriptions, total: int) -> Agreement:
    """Build the model of most clients' task; leave out the clients that have another task or model."""
    least = config.run.enough_clients(total)
    found = leave_out_others(descriptions, least)
    shape, classes, vocabulary = task_of(found, total)
    model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
    if len(set(classes)) > 1:
        most, found = max(classes), leave_out_false_classes(found, sharing.layout, least)
        shape, classes, vocabulary = task_of(found, total)
        if max(classes) != most:
            model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
    found = leave_out_other_models(found, sharing.layout, least)
    found = _leave_out_other_classes(found, config, (shape, max(classes), vocabulary), least)
    found = _leave_out_unlike(found, config, extras_of(config, model, sharing), least)
    return Agreement(model, sharing, found, shape, classes, vocabulary)


def agree_with(config: Config, descriptions: Mapping[int, Payload], task: Mapping[str, Any]) -> Agreement:
    """Build the model of a run that is over; leave out the clients that have another task, data or model."""
    config = config.of_client(0)
    shape, vocabulary, division = shape_of(task["input_shape"]), task.get("vocabulary", 0), task.get("division")
    total = max(task["clients"], int(next(iter(descriptions.values())).config["num-clients"]))
    run = _words(shape, vocabulary)
    other = {
        client: f"{OTHER_DATA}: {_inputs(description)}, the run had {run}"
        for client, description in descriptions.items()
        if _inputs(description) != run
    }
    found = _without(dict(sorted(descriptions.items())), other, 1)
    known = task.get("names", {})
    if columns := known.get("columns"):
        found = _without(found, _other_columns(found, columns, "the run's"), 1)
    divided = {
        client: f"divides the data differently than the run did: {_division(description)}, not {division}"
        for client, description in found.items()
        if None not in (division, _division(description)) and _division(description) != division
    }
    found = _without(found, divided, 1)
    model, sharing = assemble(config, shape, task["num_classes"], vocabulary=vocabulary)
    found = leave_out_other_models(found, sharing.layout, 1)
    found = _leave_out_other_classes(found, config, (shape, task["num_classes"], vocabulary), 1, known.get("classes"))
    found = _leave_out_unlike(found, config, extras_of(config, model, sharing), 1)
    return Agreement(model, sharing, found, shape, [task["num_classes"]] * total, vocabulary)


def require_same_sharing(config: Config, descriptions: Descriptions, total: int) -> None:
    """Refuse ``client-models`` that name clients that are not there, or whose models differ in what is shared."""
    named = [client for numbers, _ in client_models(config.run) for client in numbers]
    if max(named, default=0) >= total:
        allowed = f"names client {max(named)}; the clients are 0 … {total - 1}"
        raise ConfigError("client-models", config.run.client_models, allowed)
    shape, classes, vocabulary = task_of(descriptions, total)
    made = []
    for name, chosen in {config.run.model_of(client): config.of_client(client) for client in range(total)}.items():
        model, sharing = assemble(chosen, shape, max(classes), vocabulary=vocabulary)
        made.append((name, sharing.layout, extras_of(chosen, model, sharing).shapes))
    first, layout, shapes = made[0]
    for name, other, theirs in made[1:]:
        differ = [extra for extra in shapes if shapes[extra] != theirs[extra]]
        if other.entries != layout.entries:
            differ = ["shared arrays", *differ]
        if differ:
            allowed = f"{first} and {name} differ in what {config.method.name} sends: {', '.join(differ)}"
            raise ConfigError("client-models", config.run.client_models, allowed)


def leave_out_others(descriptions: Mapping[int, Payload], least: int) -> Descriptions:
    """Return the descriptions of the clients that have the task of most others, in client order.

    The task is input shape, vocabulary of texts, names and order of columns, the division of common data, and the
    layout of the shared arrays. The number of classes may differ between clients whose layouts are the same, where what
    depends on it is personal.
    """
    kept = dict(sorted(descriptions.items()))
    kept = _without(kept, _outliers(kept, _inputs, OTHER_DATA), least)
    columns = Counter(str(description.config.get("columns", "")) for description in kept.values())
    kept = _without(kept, _other_columns(kept, columns.most_common(1)[0][0], "most others'"), least)
    common = {client: description for client, description in kept.items() if "division" in description.config}
    why = "divides the data differently (another version of NumPy or of the data set?)"
    kept = _without(kept, _outliers(common, _division, why), least)
    median = statistics.median(int(description.config["num-classes"]) for description in kept.values())
    many = {
        client: f"num-classes = {count}: more than {CLASSES_OVER_MEDIAN} times the median of all clients, {median:g}"
        for client, description in kept.items()
        if (count := int(description.config["num-classes"])) > max(FEW_CLASSES, CLASSES_OVER_MEDIAN * median)
    }
    kept = _without(kept, many, least)
    if len({description.config["layout"] for description in kept.values()}) > 1:
        kept = _without(kept, _outliers(kept, _classes, OTHER_DATA), least)
    return kept


def _other_columns(descriptions: Descriptions, wanted: str, whose: str) -> dict[int, str]:
    """Return the clients whose columns have other names or another order than wanted, and how they differ."""
    told = {client: str(description.config.get("columns", "")) for client, description in descriptions.items()}
    why = f"its columns are not {whose}"
    return {client: f"{why}; {other_than(text, wanted)}" for client, text in told.items() if text != wanted}


def _leave_out_other_classes(
    descriptions: Descriptions, config: Config, task: tuple[tuple[int, ...], int, int], least: int,
    wanted: str | None = None,
) -> Descriptions:  # fmt: skip
    """Return the descriptions without those whose classes are called otherwise, if what is shared depends on them.

    ``task`` is input shape, number of classes and of tokens; the names are those of most clients unless they are given.
    """
    told = {client: str(description.config.get("classes", "")) for client, description in descriptions.items()}
    usual = Counter(told.values()).most_common(1)[0][0] if wanted is None else wanted
    other = {client: OTHER_CLASSES for client, text in told.items() if text != usual}
    if not other:
        return descriptions
    shape, classes, vocabulary = task
    sent = []
    for count in (classes, classes + 1):
        model, sharing = assemble(config, shape, count, vocabulary=vocabulary)
        sent.append((sharing.layout.entries, extras_of(config, model, sharing).to_text()))
    return descriptions if sent[0] == sent[1] else _without(descriptions, other, least)


def leave_out_false_classes(descriptions: Mapping[int, Payload], layout: Layout, least: int) -> Descriptions:
    """Return the descriptions without those whose number of classes contradicts the layout that they give."""
    if layout.to_text() in {description.config["layout"] for description in descriptions.values()}:
        return dict(descriptions)
    why = "its number of classes contradicts its layout"
    return _without(descriptions, _outliers(dict(descriptions), _classes, why), least)


def leave_out_other_models(descriptions: Mapping[int, Payload], layout: Layout, least: int) -> Descriptions:
    """Return the descriptions of the clients whose shared arrays are those of the server's model."""
    text = layout.to_text()
    other = {}
    for client, description in descriptions.items():
        try:
            if description.config["layout"] != text:
                layout.require(Layout.from_text(str(description.config["layout"])))
        except LayoutError as error:
            other[client] = f"has another model: {printable(str(error), 500)}"
    try:
        return _without(descriptions, other, least)
    except FedpflError as error:
        raise LayoutError(str(error)) from error


def _leave_out_unlike(descriptions: Mapping[int, Payload], config: Config, extras: Extras, least: int) -> Descriptions:
    """Return the descriptions without those of devices whose own model makes other arrays besides the shared ones."""
    text = extras.to_text()
    other = {
        client: f"its own model {description.config['model']} and {config.run.model} differ in what "
        f"{config.method.name} sends: {printable(str(description.config['extras']), 300)}; the server has {text}"
        for client, description in descriptions.items()
        if description.config.get("model") and description.config.get("extras", "") != text
    }
    return _without(descriptions, other, least)


def _outliers(descriptions: Descriptions, what: Callable[[Payload], Hashable], differs: str) -> dict[int, str]:
    """Return the clients that differ in something from most others, and how."""
    found = {client: what(description) for client, description in descriptions.items()}
    most = Counter(found.values()).most_common(1)[0][0] if found else None
    return {client: f"{differs}: {said}, most have {most}" for client, said in found.items() if said != most}


def _without(descriptions: Mapping[int, Payload], left_out: Mapping[int, str], least: int) -> Descriptions:
    """Leave clients out by name; raise ``FedpflError`` if too few remain."""
    remaining = {client: payload for client, payload in descriptions.items() if client not in left_out}
    if left_out and len(remaining) < least:
        raise FedpflError(reasons(left_out, "client"))
    for client, reason in left_out.items():
        logger.log(WARNING, "fedpfl: client %d cannot take part: %s", client, reason)
    return remaining


def _inputs(description: Payload) -> str:
    return _words(shape_of(str(description.config["input-shape"])), int(description.config.get("vocabulary", 0)))


def _words(shape: tuple[int, ...], tokens: int) -> str:
    return f"{shown(shape)}{f' of {tokens} tokens' * bool(tokens)}"


def _classes(description: Payload) -> str:
    return f"{_inputs(description)} with {description.config['num-classes']} classes"


def _division(description: Payload) -> Hashable:
    return description.config.get("division")
