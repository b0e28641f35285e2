"""A hook that is misspelt is refused where its class is made: otherwise nothing would ever call it."""

from __future__ import annotations

import pytest

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.engine.listener import Listener
from fedpfl.methods.bases.kept_arrays import KeepsArrays
from fedpfl.rules.mean import Mean
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

BASES = {"method": fedpfl.Method, "rule": Mean, "listener": Listener}


def nothing(self, *args):
    return None


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("method", "shedule", "schedule"), ("method", "personalized", "personalised"), ("method", "extra", "extras"),
        ("method", "globalModel", "global_model"), ("method", "is_share", "is_shared"),
        ("method", "aggregate", "aggregation"), ("method", "adaption", "adaptation"), ("method", "setings", "Settings"),
        ("rule", "attachment", "attachments"), ("rule", "out_going", "outgoing"), ("rule", "remember", "remembers"),
        ("listener", "recieve", "receive"), ("listener", "combine", "combined"),
    ],
)  # fmt: skip
def test_it_is_named_with_the_hook_that_was_meant(kind, name, meant):
    message = f"^{kind} = 'Mine': has '{name}', which nothing calls; did you mean '{meant}'"
    with pytest.raises(ConfigError, match=message):
        type("Mine", (BASES[kind],), {name: nothing})


@pytest.mark.parametrize("name", ["_shedule", "layers", "in_head", "loss_of_mixture", "prototypes", "build_model"])
def test_other_names_are_free(name):
    assert type("Mine", (fedpfl.Method,), {name: nothing})


def test_a_helper_beside_the_hook_that_it_resembles_is_no_mistake():
    assert type("Mine", (fedpfl.Method,), {"schedule": nothing, "schedules": nothing})


def test_what_a_base_in_between_has_is_no_mistake():
    assert type("Mine", (type("Base", (KeepsArrays,), {"schedule": nothing, "schedules": nothing}),), {"schedules": 1})


def test_a_file_of_one_s_own_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import fedpfl\nclass Mine(fedpfl.Method):\n    shedule = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        fedpfl.run(method="mine:Mine", quiet=True)
    assert str(raised.value).startswith("method = 'Mine': has 'shedule', which nothing calls; did you mean 'schedule'")


def test_only_settings_that_can_be_refused_are():
    def method_that_refuses(key):
        return as_setting("method", type("Mine", (fedpfl.Method,), {"name": "mine", "refuses": {key: "has none"}}))

    with method_that_refuses("loss") as text:
        Config.parse({"method": text})
    with (
        method_that_refuses("personal_head") as text,
        pytest.raises(ConfigError, match="refuses 'personal_head'; a method can refuse personal-head, loss, trainable"),
    ):
        Config.parse({"method": text})
