"""Facts about settings stand at the settings, and each has an answer where one is due."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedpfl
from fedpfl.client.policy import Policy, PolicyError
from fedpfl.core import references
from fedpfl.core import settings as s
from fedpfl.core.errors import ConfigError
from fedpfl.core.option import TaskFacts
from fedpfl.core.settings import TAGS
from fedpfl.data.registry import PARTITIONERS
from fedpfl.setup.all_settings import absolute_places, all_settings, code_in, tagged
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

PACKAGE = Path(fedpfl.__file__).parent
COMMON = {
    key: field for key, field in all_settings(look=False).items() if key in Config.parse({"method": "fedavg"}).flat()
}
# Words by which the documentation says that a setting is a path.
PATH = re.compile(r"\b(a file|a folder|file or folder|CSV file|TOML file|tokenizer\.json|Place of)\b")


def test_each_tag_is_one_that_has_a_meaning():
    for key, field in all_settings(look=False).items():
        assert {*field.metadata["tags"]} <= TAGS.keys(), key
    assert all(tagged(tag) for tag in TAGS)


def test_a_text_without_choices_says_what_it_may_be():
    for key, field in COMMON.items():
        free = isinstance(field.default, str) and field.metadata["limits"].choices is None
        assert bool(field.metadata["form"]) == free, key


def test_what_may_name_code_says_so():
    for key, field in COMMON.items():
        forms = [*field.metadata["limits"].open_to, field.metadata["form"]]
        assert any("MODULE:NAME" in form for form in forms) == (key in tagged("code")), key
    assert tagged("code") >= references.GROUPS.keys()


def test_what_is_a_path_says_so_and_whether_its_content_makes_another_run():
    for key, field in COMMON.items():
        told = f"{field.metadata['form']} {field.metadata['doc']}" if isinstance(field.default, str) else ""
        assert bool(PATH.search(told)) == (key in tagged("place")), key
    assert tagged("file") == tagged("place") - tagged("idle")


def test_what_acts_only_with_others_names_values_that_these_allow():
    for key, field in COMMON.items():
        for other, values in field.metadata["only"].items():
            for value in {*values} - {references.FORM, s.ABOVE_0}:
                assert COMMON[other].metadata["limits"].complaint(value) is None, (key, other, value)


def test_what_does_not_act_is_told_before_round_1():
    task = TaskFacts(None, 10, 100, True)
    for key, field in COMMON.items():
        for other, values in field.metadata["only"].items():
            usual = COMMON[other].default
            if usual not in values and type(field.default) in (int, float):
                changed = field.default / 2 if isinstance(field.default, float) and field.default else field.default + 1
                said = Config.parse({"method": "fedavg", key: changed}).remarks(task)
                assert f"not used with {other} = {usual}: {key}" in said, key


def test_each_setting_of_a_partitioner_is_one_that_it_reads():
    source = (PACKAGE / "data" / "partitioners.py").read_text(encoding="utf-8")
    source += (PACKAGE / "data" / "paper_partitioners.py").read_text(encoding="utf-8")
    for key, field in COMMON.items():
        if "partitioner" in field.metadata["only"]:
            assert re.search(rf"\b{key.replace('-', '_')}\b", source), key
            assert {*field.metadata["only"]["partitioner"]} <= {"auto", *PARTITIONERS}, key


@pytest.mark.parametrize("key", sorted(tagged("code") - tagged("server")))
def test_a_device_asks_its_policy_for_code_in_every_setting(key):
    values = {"method": "fedavg", key: f"own{'_' * 3}:part"}
    assert code_in(values) == [(key, "own___:part")]
    with pytest.raises((PolicyError, ConfigError), match=key):
        Policy(code_hashes=None).check(values, "")


@dataclass(frozen=True)
class OfTable:
    table: str = fedpfl.setting("", "A file that the method reads.", form="a file", tags="place file")


def test_tags_of_a_user_s_method_count():
    assert not [key for key, of in all_settings(look=False).items() if key not in COMMON and of.metadata["tags"]]

    class WithTable(fedpfl.Method):  # here, so that no other test knows it
        name, Settings = "with-table", OfTable

    with as_setting("method", WithTable) as text:
        Config.parse({"method": text})
        assert "with-table-table" in tagged("file") and "with-table-table" in tagged("place")
        assert Path(absolute_places({"with-table-table": "own.csv"})["with-table-table"]).is_absolute()
        values = Config.parse({"method": text, "with-table-table": "/elsewhere/own.csv"}).flat()
        with pytest.raises(PolicyError, match=r"with-table-table = '/elsewhere/own\.csv'"):
            Policy(parts=(text,)).check(values, "")
    assert "with-table-table" not in tagged("file")


def test_no_list_of_settings_stands_away_from_them():
    """What several settings have in common is a tag; the live page chooses what it shows."""
    keys, lists = {*COMMON}, set()
    for path in {*PACKAGE.rglob("*.py")} - {PACKAGE / "study" / "live" / "run_data.py"}:
        assigned = [line for line in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(line, ast.Assign)]
        for node in (inner for outer in assigned for inner in ast.walk(outer.value)):
            if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
                texts = {text.value for text in node.elts if isinstance(text, ast.Constant)}
                as_keys = {str(text).replace("_", "-") for text in texts}
                if len(as_keys & keys) > 2 and as_keys <= keys:
                    lists.add(f"{path.relative_to(PACKAGE)}: {sorted(texts)}")
    assert not lists
