"""Options: each has a title and settings of its own, and none acts unless it is wanted."""

from __future__ import annotations

import pytest

from fedpfl.client.options import parts_of
from fedpfl.core.option import NoSettings, TaskFacts
from fedpfl.setup.config import Config
from fedpfl.setup.options import OPTIONS


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.__name__)
def test_an_option_at_its_defaults_remarks_nothing(option):
    assert option.title and option(option.Settings()).remarks(Config.parse({}), TaskFacts(None, 10, 100, True)) == []


def test_settings_of_an_option_are_found_and_replaced_by_their_class():
    config = Config.parse({})
    for option in config.options:
        if type(option.settings) is NoSettings:
            continue
        assert config.of(type(option.settings)) is option.settings
        assert config.put(option.settings) == config


def test_without_settings_of_options_clients_have_none_that_changes_their_rounds():
    assert parts_of(None, Config.parse({"method": "fedavg", "device-models": "never"})) == []
