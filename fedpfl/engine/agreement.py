"""The task that the clients agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..core.names import shape_of
from ..core.option import part
from ..core.payload import Payload
from ..core.server_view import Client
from ..core.sharing import Sharing
from ..setup.assembly import assemble
from ..setup.config import Config

Descriptions = dict[int, Payload]

# What clients tell of themselves that may differ where their tasks are the same.
_OWN = frozenset({"client", "identity", "earlier-identity", "threads", "remarks"})


@dataclass(frozen=True)
class Agreement:
    """The task that clients have in common."""

    model: nn.Module  # what every client starts from, with the most classes that a client has
    sharing: Sharing  # which of its arrays travel
    descriptions: Descriptions  # of the clients that take part, by themselves
    input_shape: tuple[int, ...]  # of one sample
    classes: list[int]  # each client's number; an absent client counts as one with as many as most others have
    vocabulary: int  # different tokens of texts, else 0

    @property
    def division(self) -> int | None:
        """The checksum of the division of common data; None if a client has data of its own."""
        divisions = {description.config.get("division") for description in self.descriptions.values()}
        return None if None in divisions else int(str(divisions.pop()))

    @property
    def names(self) -> dict[str, str]:
        """The texts that stand for the names of columns and of classes, where all clients have the same."""
        found = {
            key: {str(description.config.get(key, "")) for description in self.descriptions.values()}
            for key in ("columns", "classes")
        }
        return {key: texts.pop() for key, texts in found.items() if len(texts) == 1 and texts != {""}}

    @property
    def clients(self) -> list[Client]:
        """The clients with their numbers of samples, and those that are absent."""
        metrics = {client: description.metrics for client, description in self.descriptions.items()}
        sizes = {i: (int(m["train-samples"]), int(m["test-samples"])) for i, m in metrics.items()}
        return [Client(i, *sizes.get(i, (0, 0)), absent=i not in sizes) for i in range(len(self.classes))]

    @property
    def threads(self) -> list[int]:
        """The number of threads with which each client computes; 0 of one that is absent."""
        threads = {client: int(found.config.get("threads", 0)) for client, found in self.descriptions.items()}
        return [threads.get(client, 0) for client in range(len(self.classes))]

    @property
    def models(self) -> dict[str, str]:
        """The models that devices' owners have named, by client."""
        named = {client: str(found.config.get("model", "")) for client, found in self.descriptions.items()}
        return {str(client): model for client, model in named.items() if model}

    @property
    def remarks(self) -> list[str]:
        """What clients remark on common data, each remark once, and which clients are absent."""
        texts = (str(description.config.get("remarks", "")).splitlines() for description in self.descriptions.values())
        found = list(dict.fromkeys(line for lines in texts for line in lines))
        if self.models:
            own = ", ".join(f"client {client} {model}" for client, model in self.models.items())
            found.append(f"devices have their own models: {own}")
        absent = [str(client.id) for client in self.clients if client.absent]
        if absent:
            found.append(f"clients {', '.join(absent)} of {len(self.classes)} do not take part in this run")
        return found


def agree(config: Config, descriptions: Mapping[int, Payload]) -> Agreement:
    """Build the model of most clients' task; leave out, by name, the clients that have another task or model."""
    found = dict(sorted(descriptions.items()))
    total = int(next(iter(found.values())).config["num-clients"])
    if config.run.client_models:
        part("fedpfl.engine.disagreement:require_same_sharing")(config, found, total)
    config = config.of_client(0)
    told = [{key: value for key, value in of.config.items() if key not in _OWN} for of in found.values()]
    if all(task == told[0] for task in told) and "model" not in told[0]:
        shape, classes, vocabulary = task_of(found, total)
        model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
        if told[0]["layout"] == sharing.layout.to_text():
            return Agreement(model, sharing, found, shape, classes, vocabulary)
    settled: Agreement = part("fedpfl.engine.disagreement:settle")(config, found, total)
    return settled


def task_of(descriptions: Descriptions, total: int) -> tuple[tuple[int, ...], list[int], int]:
    """Return input shape, the classes of all clients in order, and the number of different tokens of texts (else 0)."""
    one = next(iter(descriptions.values())).config
    classes = {client: int(description.config["num-classes"]) for client, description in descriptions.items()}
    usual = Counter(classes.values()).most_common(1)[0][0]
    shape, vocabulary = shape_of(str(one["input-shape"])), int(one.get("vocabulary", 0))
    return shape, [classes.get(client, usual) for client in range(total)], vocabulary
