"""Options: what each names is there, and none is asked for more than the core knows of all."""

from __future__ import annotations

import inspect

import pytest

from fedpfl.core.option import NoSettings, Option, TaskFacts, options, part
from fedpfl.setup.config import Config

KINDS = {
    "model", "client", "of_client", "train", "extras", "rule", "plan", "instead", "follower", "attendance", "listener",
    "loop", "afterwards",
}  # fmt: skip


@pytest.mark.parametrize("option", options(), ids=lambda option: option.__name__)
def test_what_an_option_brings_is_there(option):
    assert option.parts.keys() <= KINDS
    for kind in option.parts:
        assert f"``{kind}``" in inspect.getdoc(Option)
        assert callable(part(option.parts[kind]))
    assert option.title and option(option.Settings()).remarks(Config.parse({}), TaskFacts(None, 10, 100, True)) == []


def test_settings_of_an_option_are_found_and_replaced_by_their_class():
    config = Config.parse({})
    for option in config.options:
        if type(option.settings) is NoSettings:
            continue
        assert config.of(type(option.settings)) is option.settings
        assert config.put(option.settings) == config


def test_without_settings_of_options_a_run_has_none_that_changes_its_rounds():
    parts = {kind: Config.parse({"method": "fedavg"}).parts(kind) for kind in KINDS}
    assert {kind: len(found) for kind, found in parts.items() if found} == {"model": 1, "client": 1, "listener": 1}
