from __future__ import annotations

import pytest

from fedpfl.client.run_settings import parse_once
from fedpfl.core.errors import ConfigError
from fedpfl.setup.config import Config


def test_the_settings_of_a_run_s_messages_are_parsed_once():
    values = {"method": "fedfac", "seed": 1}
    first = parse_once(values)
    assert first == Config.parse(values)
    assert parse_once(dict(reversed(list(values.items())))) is first
    assert parse_once({**values, "seed": 2}).run.seed == 2


@pytest.mark.parametrize("seed", [1.5, True, "one", [1], {"a": 1}, None])
def test_settings_that_are_parsed_once_are_checked_as_others_are(seed):
    parse_once({"method": "fedavg", "seed": 1})
    for _ in range(2):
        with pytest.raises(ConfigError, match="seed"):
            parse_once({"method": "fedavg", "seed": seed})


def test_settings_that_name_custom_code_are_parsed_each_time(tmp_path, monkeypatch):
    (tmp_path / "mine_parsed.py").write_text("from fedpfl.methods.fedavg import FedAvg as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    values = {"method": "mine_parsed:Mine"}
    assert parse_once(values) is not parse_once(values)
