"""Which clients can learn together: those whose task differs from that of most others are left out by name."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from logging import WARNING, getLogger

from ..core.claims import CLASSES_OVER_MEDIAN, FEW_CLASSES
from ..core.errors import FedpflError, LayoutError, printable, reasons
from ..core.layout import Layout
from ..core.payload import Payload

logger = getLogger("flwr")

Descriptions = dict[int, Payload]

OTHER_DATA = "its data do not fit the others'"


def leave_out_others(descriptions: Mapping[int, Payload], least: int) -> Descriptions:
    """Return the descriptions of the clients that have the task of most others, in client order.

    The task is input shape, vocabulary of texts, the division of common data, and the layout of the shared arrays. The
    number of classes may differ between clients whose layouts are the same, where what depends on it is personal.

    Parameters
    ----------
    descriptions : mapping of int to Payload
        How each client describes itself; its values are within :mod:`fedpfl.core.claims`.
    least : int
        How many clients have to agree.

    Raises
    ------
    FedpflError
        Fewer agree.
    """
    kept = dict(sorted(descriptions.items()))
    kept = _without(kept, _others(kept, _inputs, OTHER_DATA), least)
    common = {client: description for client, description in kept.items() if "division" in description.config}
    why = "divides the data differently (another version of NumPy or of the data set?)"
    kept = _without(kept, _others(common, _division, why), least)
    median = statistics.median(int(description.config["num-classes"]) for description in kept.values())
    many = {
        client: f"num-classes = {count}: more than {CLASSES_OVER_MEDIAN} times the median of all clients, {median:g}"
        for client, description in kept.items()
        if (count := int(description.config["num-classes"])) > max(FEW_CLASSES, CLASSES_OVER_MEDIAN * median)
    }
    kept = _without(kept, many, least)
    if len({description.config["layout"] for description in kept.values()}) > 1:
        kept = _without(kept, _others(kept, _classes, OTHER_DATA), least)
    return kept


def leave_out_false_classes(descriptions: Mapping[int, Payload], layout: Layout, least: int) -> Descriptions:
    """Return the descriptions without those whose number of classes contradicts the layout that they give.

    Parameters
    ----------
    layout : Layout
        The shared arrays of a model for the largest number of classes.
    """
    if layout.to_text() in {description.config["layout"] for description in descriptions.values()}:
        return dict(descriptions)
    why = "its number of classes contradicts its layout"
    return _without(descriptions, _others(dict(descriptions), _classes, why), least)


def leave_out_other_models(descriptions: Mapping[int, Payload], layout: Layout, least: int) -> Descriptions:
    """Return the descriptions of the clients whose shared arrays are those of the server's model.

    Raises
    ------
    LayoutError
        Fewer than ``least`` have that model.
    """
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


def _others(descriptions: Descriptions, what: Callable[[Payload], Hashable], differs: str) -> dict[int, str]:
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
    tokens = int(description.config.get("vocabulary", 0))
    return f"{description.config['input-shape']}{f' of {tokens} tokens' * bool(tokens)}"


def _classes(description: Payload) -> str:
    return f"{_inputs(description)} with {description.config['num-classes']} classes"


def _division(description: Payload) -> Hashable:
    return description.config.get("division")
