"""Settings in YAML mean what they mean in TOML, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpfl.cli import yaml_settings
from fedpfl.cli.common import overrides
from fedpfl.core.errors import ConfigError
from fedpfl.setup.all_settings import require_used

YAML = """
# a comment
method: fedavg
dirichlet-alpha: 0.1
learning-rate: 1e-3   # a text in YAML 1.1
seed: 5
personal-head: true
run-name: "no"
output-dir: ~/runs
data: ''
"""
TOML = """
method = "fedavg"
dirichlet-alpha = 0.1
learning-rate = 1e-3
seed = 5
personal-head = true
run-name = "no"
output-dir = "~/runs"
data = ""
"""


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_yaml_and_toml_mean_the_same(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.{ending}").write_text(YAML)
    (tmp_path / "a.toml").write_text(TOML)
    one, other = overrides([str(tmp_path / f"a.{ending}")]), overrides([str(tmp_path / "a.toml")])
    assert one == other and [type(value) for value in one.values()] == [type(value) for value in other.values()]
    assert overrides([str(tmp_path / f"a.{ending}"), "seed=6"])["seed"] == 6
    require_used(one, ["fedavg"])


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "{}\n"):
        (tmp_path / "a.yaml").write_text(text)
        assert overrides([str(tmp_path / "a.yaml")]) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data:\n  set: digits\n", "line 2: data must be one value; settings have no sections"),
        ("method: [fedavg, ditto]\n", "line 1: method must be one value; settings have no sections, lists"),
        ("- fedavg\n", "line 1: must be lines of key: value"),
        ("? [seed]\n: 1\n", "line 1: must be lines of key: value"),
        ("fedavg\n", "line 1: must be lines of key: value"),
        ("seed: 1\nseed: 2\n", "line 2: seed is set twice"),
        ("seed:\n", "seed has no value; an empty text is written ''"),
        ("seed: 1\n---\nseed: 2\n", "expected a single document"),
        ("seed: !!python/object/apply:os.system ['true']\n", "line 1: anchors and tags are not allowed"),
        ("seed: !!int 3\n", "line 1: anchors and tags are not allowed"),
        ("a: &x 1\nb: *x\n", "line 1: anchors and tags are not allowed"),
        ("a: &x [1]\nb: *x\n", "line 1: anchors and tags are not allowed"),
        ("seed: 'open\n", "is not valid YAML"),
        ("\tseed: 1\n", "is not valid YAML"),
        ("{" * 50_000, "is not valid YAML|settings have no sections"),
    ],
)
def test_what_is_no_plain_list_of_settings_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        overrides([str(path)])
    assert str(caught.value).startswith(f"run-config = '{path}': ") and "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        overrides([str(tmp_path / "none.yaml")])
    (tmp_path / "a.yaml").write_bytes(b"seed: \xff\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        overrides([str(tmp_path / "a.yaml")])
    monkeypatch.setattr(yaml_settings, "MAX_BYTES", 10)
    (tmp_path / "a.yaml").write_text("seed: 12345678\n")
    with pytest.raises(ConfigError, match="is longer than 10 bytes"):
        overrides([str(tmp_path / "a.yaml")])


def test_a_file_of_references_does_not_grow(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="line 1: anchors and tags are not allowed"):
        overrides([str(tmp_path / "a.yaml")])
