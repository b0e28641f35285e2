"""The settings of a run's messages, checked once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Mapping, Tuple

from ..core import user_code
from ..setup.all_settings import code_in
from ..setup.config import Config

Items = Tuple[Tuple[str, type, Any], ...]


def parse_once(values: Mapping[str, Any]) -> Config:
    """Return the settings of a message, which are checked once for all messages of a run with the same ones.

    Those that name custom code are checked each time, since its file may have changed.
    """
    scalar = all(isinstance(value, (str, int, float)) for value in values.values())
    if not scalar or code_in(values):
        return Config.parse(values)
    # With the types: 1, 1.0 and True are equal.
    return _parsed(tuple((key, type(value), value) for key, value in sorted(values.items())), user_code.version())


@lru_cache(maxsize=4)
def _parsed(items: Items, version: int) -> Config:
    return Config.parse({key: value for key, _, value in items})
