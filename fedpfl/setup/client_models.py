"""Models for some of the clients, as ``client-models`` names them."""

from __future__ import annotations

import re
from typing import Iterator

from ..core import custom, own_code
from ..core import settings as s
from ..core.errors import ConfigError
from .config import RunSettings

# At most six digits: what comes from the network must not make a range of billions.
_CLIENTS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?:(\S+)")


def model_of(run: RunSettings, client: int) -> str:
    """Return the model of a client, which is the run's own if it is given none."""
    text = run.client_models
    if not custom.is_reference(text):
        return next((model for numbers, model in client_models(run) if client in numbers), run.model)
    name = own_code.call("client-models", text, own_code.find("client-models", text), {"client": client})
    if not isinstance(name, str):
        allowed = f"returns {custom.article(name)} for client {client}, and must return the name of a model"
        raise ConfigError("client-models", text, allowed)
    return name


def check(run: RunSettings) -> None:
    """Raise ``ConfigError`` for clients that are not listed as they must be, and for models that there are not."""
    for _, model in client_models(run):
        s.parse(RunSettings, {"model": model})


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
