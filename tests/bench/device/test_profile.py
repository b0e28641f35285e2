"""A machine's profile: measured with what a client runs, and read back by a plan."""

from __future__ import annotations

import tomllib

import pytest

from fedpfl.bench.device import profile
from fedpfl.core.errors import ConfigError
from fedpfl.core.settings import keys
from fedpfl.setup.config import Config


@pytest.mark.parametrize(("method", "shape"), [("fedper", "3x16x16"), ("fedreg", "1x8x8"), ("scaffold", "20")])
def test_a_profile_has_the_speeds_of_a_run(tmp_path, monkeypatch, method, shape, capsys):
    model = "mlp-200" if shape == "20" else "small-cnn"
    config = Config.parse({"method": method, "model": model, "batch-size": 8, "local-epochs": 1, "threads": 1})
    found = profile.measure(config, shape, 4, seconds=0.0)
    assert min(found.train, found.test, found.standard_train, found.standard_test) > 0
    assert found.settings == {"method": method, "model": model, "batch-size": 8}
    monkeypatch.setattr(profile, "measure", lambda *_: found)
    profile.write(tmp_path / "here.toml", config, shape, 4)
    values = tomllib.loads((tmp_path / "here.toml").read_text())
    assert list(values) == keys(profile.Profile)
    assert (values["input"], values["threads"]) == (shape, 1)
    assert "training and" in capsys.readouterr().out


@pytest.mark.parametrize(("shape", "classes", "words"), [
    ("28*28", 10, "input = '28\\*28': must be the shape of a sample"),
    ("9999999", 10, "input = '9999999': must be the shape of a sample"),
    ("1x8x8", 1, "classes = 1: must be at least 2"),
])  # fmt: skip
def test_another_shape_is_refused(shape, classes, words):
    with pytest.raises(ConfigError, match=words):
        profile.measure(Config.parse({}), shape, classes)


def test_the_command_on_a_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profile, "measure", lambda config, shape, classes: profile.Profile(method=config.run.method))
    profile.main([str(tmp_path / "a.toml"), "-c", 'method="fedper" batch-size=8'])
    assert 'method = "fedper"' in (tmp_path / "a.toml").read_text()
    with pytest.raises(SystemExit, match=r"error: profile = '.*/none/a.toml': must be a file in a folder that exists"):
        profile.main([str(tmp_path / "none" / "a.toml")])
    with pytest.raises(SystemExit, match=r"error: run-config = .*must be key=value pairs"):
        profile.main([str(tmp_path / "a.toml"), "-c", "method=fedper"])
