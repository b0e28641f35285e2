"""Settings in YAML, with the meaning that the same words have in TOML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..core.errors import ConfigError, DamagedFile, words_of
from ..core.files import open_regular

# Size of a file with all settings; a larger file is something else.
MAX_BYTES = 2**20
# YAML 1.1 takes 1e-3 for a text, no for false and 1:30 for 90: here plain words mean what they mean in TOML.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9_]{0,30})")
_FLOAT = re.compile(r"[+-]?([0-9][0-9_]*)?\.?[0-9]+([eE][+-]?[0-9]+)?|[+-]?[0-9]+\.")
_WORDS = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}


def read_yaml(path: Path, option: str) -> dict[str, Any]:
    """Read a YAML file of keys and values. No object is built from it, so no file can grow when it is read."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(option, str(path), f"is longer than {MAX_BYTES} bytes, too long for settings")
        return _flat(path, option, content.decode("utf-8-sig"))
    except DamagedFile as error:
        raise ConfigError(option, str(path), f"cannot be read ({error.more})") from error
    except OSError as error:
        raise ConfigError(option, str(path), f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = words_of(error)
        raise ConfigError(option, str(path), f"is not valid YAML ({reason})") from error


def _flat(path: Path, option: str, text: str) -> dict[str, Any]:
    def refuse(node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(option, str(path), f"line {node.start_mark.line + 1}: {what}")

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise refuse(root, "must be lines of key: value")
    settings: dict[str, Any] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refuse(key, "must be lines of key: value")
        if key.value in settings:
            raise refuse(key, f"{key.value} is set twice")
        if any(text[node.start_mark.index : node.start_mark.index + 1] in ("&", "!") for node in (key, value)):
            raise refuse(value, "anchors and tags are not allowed")
        if not isinstance(value, yaml.ScalarNode):
            raise refuse(value, f"{key.value} must be one value; settings have no sections, lists or references")
        settings[key.value] = value.value if value.style else _value(value.value)
        if settings[key.value] is None:
            raise refuse(value, f"{key.value} has no value; an empty text is written ''")
    return settings


def _value(word: str) -> Any:
    """Return the value of a word without quotes; None for nothing."""
    if word in ("", "~", "null"):
        return None
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word.replace("_", ""))
    return float(word.replace("_", "")) if _FLOAT.fullmatch(word) else word
