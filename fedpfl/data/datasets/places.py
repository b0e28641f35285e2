"""Where data sets lie, and what is needed to read them."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
from pathlib import Path
from typing import Any, Iterator

from ...core.errors import ConfigError, DataError
from ..settings import DataSettings

_downloads = contextvars.ContextVar("downloads", default=True)


@contextlib.contextmanager
def no_downloads() -> Iterator[None]:
    """Let data sets that are not on this machine be a :class:`DataError` instead of a download."""
    token = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(token)


def downloads_allowed() -> bool:
    """Return whether a data set that is not on this machine may be downloaded."""
    return _downloads.get()


def data_dir(settings: DataSettings) -> Path:
    """Return the folder in which published data sets lie."""
    return Path(settings.data_dir).expanduser()


def shortcut(settings: DataSettings) -> Path:
    """Return the file that takes the place of a published data set, where it is there."""
    return data_dir(settings) / (settings.dataset.replace("-", "_") + ".npz")


def own_path(settings: DataSettings, what: str) -> Path:
    """Return the path of a user's own data, the setting ``data``; ``ConfigError`` if it is empty.

    ``what`` is for the error.
    """
    if not settings.data:
        raise ConfigError("data", "", f'must be the path of {what} for dataset = "{settings.dataset}"')
    return Path(settings.data).expanduser()


def need(module: str, package: str, why: str) -> Any:
    """Import an optional package at the moment it is needed, so that a small device can do without it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
        raise DataError(f"{why} needs the package {package} (pip install {package}): {error}") from error
