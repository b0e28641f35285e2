"""A device's policy: what each key allows and refuses, whichever process answers, and that no server gets around it."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flower_apps import AppGrid, Net, initial, samples
from flwr.app import Context, Message, RecordDict
from old_python import old_python
from support import LocalGrid, arrays, federation, run_federation, simulate
from waiting import HANG_SECONDS
from worker_parts import workers

from fedpfl import strategies
from fedpfl.bench.device.forward import forward
from fedpfl.client import policy, protocol
from fedpfl.client.message_handler import handle
from fedpfl.client.policy import VARIABLE, PolicyError, bounded
from fedpfl.core import checksummed_files, code_hash, user_code
from fedpfl.core.errors import FedpflError
from fedpfl.core.payload import Payload
from fedpfl.flower import client_app
from fedpfl.flower.messages import to_content
from fedpfl.setup.all_settings import tagged
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

SHIPPED = Path(__file__).parents[2] / "jetson" / "policy.toml"
NODE = {"partition-id": 1, "num-partitions": 3}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Each test's device has a home of its own, and no policy."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "home"


@pytest.fixture
def allow(tmp_path, monkeypatch):
    """Give this device a policy, in which clients may keep their arrays where tests have them."""
    count = iter(range(1000))

    def write(**keys):
        # JSON's lists, texts, numbers and truth values are TOML's.
        keys = {"state-folders": [str(tmp_path / "state")], **{k.replace("_", "-"): v for k, v in keys.items()}}
        path = tmp_path / f"policy-{next(count)}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value).replace(': ', ' = ')}\n" for key, value in keys.items()))
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return write


def ask(values, **settings):
    changed = {key.replace("_", "-"): value for key, value in settings.items()}
    return handle("query", Payload({"state-key": "key"}), {**values, **changed}, NODE)


def refuses(message):
    return pytest.raises(PolicyError, match=f"the policy of {re.escape(socket.gethostname())} refuses {message}")


@pytest.fixture
def values(tmp_path):
    return federation(tmp_path, 3, method="fedper")


# -- the file --------------------------------------------------------------------------------------------------------


def test_a_device_without_a_policy_takes_part_in_everything(values, monkeypatch):
    assert policy.guard() is None
    assert ask(values, evaluate_global=True).config["client"] == 1
    monkeypatch.setenv(VARIABLE, "")
    assert policy.guard() is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('method = ["fedavg"]', "there is no key 'method'; did you mean methods"),
        ("secret = 1", "there is no key 'secret'"),
        ('methods = "fedavg"', "methods = 'fedavg': must be a list of texts"),
        ("parts = [1]", "parts = [1]: must be a list of texts"),
        ('code-hashes = [""]', "code-hashes = ['']: must be a list of texts"),
        ('data-folders = ["data"]', "data-folders = ['data']: must be a list of paths that are absolute or start"),
        ('state-folders = "/srv"', "state-folders = '/srv': must be a list of paths that are absolute or start"),
        ('personal-arrays = "no"', "personal-arrays = 'no': must be true or false"),
        ("least-dp-noise-multiplier = -1", "least-dp-noise-multiplier = -1: must be a number of at least 0"),
        ("least-dp-noise-multiplier = inf", "must be a number of at least 0"),
        ("least-dp-noise-multiplier = true", "must be a number of at least 0"),
        ("most-state-bytes = 1.5", "most-state-bytes = 1.5: must be a whole number of at least 0"),
        ("most-releases = 1.5", "most-releases = 1.5: must be a whole number of at least 0"),
        ("delta = 1", "delta = 1: must be a number above 0 and below 1"),
        ("most = {threads = true}", "most: 'threads' = True: must be a setting that is a number"),
        ("most = {method = 1}", "most: 'method' = 1: must be a setting that is a number"),
        ("most = {thread = 1}", "most: 'thread' = 1: must be a setting that is a number, and its largest value"),
        pytest.param(f"{'k' * 9000} = 1", "there is no key 'kkkkkkkkkkkk...kkkkkkkkkkkkk'", id="long"),
        ("most-seconds = 9223372036854775808", "cannot be read: most-seconds: a number of more than 64 bits"),
        ("methods = [", "cannot be read"),
        ("methods = []\nmethods = []", "cannot be read"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_the_file(values, tmp_path, monkeypatch, line, message):
    path = tmp_path / "policy.toml"
    if line is not None:
        path.write_text(line)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(PolicyError) as refused:
        ask(values)
    assert message in str(refused.value) or re.search(message, str(refused.value))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_shipped_policy_has_each_key_once_and_the_page_explains_it():
    text = SHIPPED.read_text()
    page = (SHIPPED.parents[1] / "docs" / "how-to" / "what-leaves-a-client.md").read_text()
    for key in policy._KEYS:
        assert len(re.findall(rf"^(# )?{key} = ", text, re.MULTILINE)) == 1, key
        assert f"| `{key}` |" in page, key


# -- methods and code ------------------------------------------------------------------------------------------------


def test_methods_are_allowed_by_name_or_by_another_of_their_names(values, allow):
    allow(methods=["fedper", "factorized-fl"], personal_arrays=True)
    ask(values)
    ask(values, method="factorized-fl")
    with refuses("method = 'fedavg': methods has fedper, factorized-fl"):
        ask(values, method="fedavg")
    allow(methods=[])
    with refuses("method = 'fedper': methods has none"):
        ask(values)


def test_fedpfl_s_own_code_must_have_a_known_hash(values, allow):
    allow(code_hashes=["0" * 16, code_hash.of_package()])
    ask(values)
    allow(code_hashes=["0" * 16])
    with refuses(f"fedpfl's code = '{code_hash.of_package()}': it is not in code-hashes"):
        ask(values)


@pytest.fixture
def app(tmp_path):
    """Make an app with a method of its own, whose import leaves a trace."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "policy_parts.py").write_text(
        "from pathlib import Path\nfrom fedpfl.methods.fedper import FedPer\n"
        "Path(__file__).with_name('imported').touch()\n\n\n"
        "class Mine(FedPer):\n    name = 'mine'\n"
    )
    user_code.set_folder(folder)
    yield folder
    user_code.set_folder(None)


def test_an_app_s_own_part_needs_its_name_and_the_hash_of_its_code(values, allow, app):
    mine = "policy_parts:Mine"
    allow(code_hashes=[code_hash.of_package(), code_hash.of_folder(app)])
    with refuses(f"method = '{mine}': it is not in parts"):
        ask(values, method=mine)
    allow(parts=[mine], code_hashes=[code_hash.of_package()])
    with refuses(f"the code of {mine} = '{code_hash.of_folder(app)}': it is not in code-hashes"):
        ask(values, method=mine)
    # Without code-hashes, too: a name alone says nothing of the code.
    allow(parts=[mine])
    with refuses(f"the code of {mine} = "):
        ask(values, method=mine)
    assert not (app / "imported").exists()
    allow(parts=[mine], methods=["fedprox"], code_hashes=[code_hash.of_package(), code_hash.of_folder(app)])
    ask(values, method=mine)
    assert (app / "imported").exists()
    (app / "helper.py").write_text("changed = True\n")
    with refuses(f"the code of {mine} = "):
        ask(values, method=mine)


@pytest.mark.parametrize("named", ["{}", "1:{}", "0:mlp,2-3:{}"])
def test_models_of_clients_are_refused_as_the_model_is(values, allow, app, named):
    allow(code_hashes=[code_hash.of_package()])
    with refuses("client-models = 'policy_parts:Mine': it is not in parts"):
        ask(values, client_models=named.format("policy_parts:Mine"))
    assert not (app / "imported").exists()


def test_what_a_function_of_the_client_names_is_refused_before_it_is_built(values, allow, app):
    (app / "policy_parts.py").write_text("def chosen(client):\n    return ['mlp', 'hf:/etc', 'other:Net'][client]\n")
    hashes = [code_hash.of_package(), code_hash.of_folder(app)]
    allow(parts=["policy_parts:chosen"], code_hashes=hashes)
    with refuses("model = '/etc': it is not below data-folders"):
        ask(values, client_models="policy_parts:chosen")
    with refuses("model = 'other:Net': it is not in parts"):
        handle("query", Payload(), {**values, "client-models": "policy_parts:chosen"}, {**NODE, "partition-id": 2})


def test_a_device_s_own_model_is_its_policy_s_too(values, allow):
    allow()
    with refuses("model = 'policy_parts:Mine': it is not in parts"):
        handle("query", Payload(), values, {**NODE, "model": "policy_parts:Mine"})


def test_a_package_whose_code_has_no_hash_is_refused(values, allow, app):
    (app / "policy_package").mkdir()
    (app / "policy_parts.py").rename(app / "policy_package" / "inner.py")
    mine = "policy_package.inner:Mine"  # Python imports it without an __init__.py, too
    allow(parts=[mine])
    with refuses(f"method = '{mine}': there is no file of this module"):
        ask(values, method=mine)
    (app / "policy_package" / "__init__.py").touch()
    with refuses(f"the code of {mine} = '{code_hash.of_folder(app)}'"):
        ask(values, method=mine)
    assert not (app / "policy_package" / "imported").exists()


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_no_function_of_an_installed_module_is_called_unless_it_is_named(values, allow, tmp_path, kind):
    kept = tmp_path / "kept"
    kept.mkdir()
    allow(data_folders=[str(tmp_path), "~/.fedpfl/data"])
    # Python's own, which takes an argument called path.
    with refuses(f"{kind} = 'shutil:rmtree': it is not in parts"):
        ask(values, data=str(kept), **{kind: "shutil:rmtree"})
    assert kept.is_dir()


# -- personal arrays and privacy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_global": True}, "evaluate-global = True: personal-arrays is false"),
        ({"method": "fedfac"}, "method = 'fedfac': it sends personal arrays, and personal-arrays is false"),
        ({"method": "factorized-fl"}, "method = 'factorized-fl': it sends personal arrays, and personal-arrays"),
    ],
)
def test_personal_arrays_leave_only_where_they_may(values, allow, settings, message):
    allow(personal_arrays=True)
    ask(values, **settings)
    for keys in ({}, {"personal_arrays": False}):
        allow(**keys)
        ask(values)
        with refuses(message):
            ask(values, **settings)


def test_noise_has_to_be_the_client_s_own_and_enough(values, allow):
    allow(least_dp_noise_multiplier=1)
    enough = {"dp_noise_multiplier": 1.0}
    ask(values, **enough)
    with refuses(r"dp-noise-multiplier = 0\.0: least-dp-noise-multiplier is 1"):
        ask(values)
    with refuses(r"dp-noise-multiplier = 0\.99: least-dp-noise-multiplier is 1"):
        ask(values, dp_noise_multiplier=0.99)
    with refuses("dp-where = 'server': it must be client"):
        ask(values, **enough, dp_where="server")
    with refuses("dp-reproducible = True: the server could subtract the noise"):
        ask(values, **enough, dp_reproducible=True)


@pytest.fixture
def train(values, tmp_path):
    """Return what asks a client to train in a round: settings → the arrays that it sends."""
    layout = ask(values).config["layout"]
    start = arrays_of(values)

    def asked(number=1, key="key", **settings):
        message = {"state-key": key, "round": number, "personal-round": 0, "layout": layout}
        changed = {name.replace("_", "-"): value for name, value in settings.items()}
        payload = Payload(message, {}, {"shared": start.copy()})
        return handle("train", payload, {**values, **changed}, NODE).arrays["shared"]

    return asked


def arrays_of(values):
    _, sharing = assemble(Config.parse(values), (1, 8, 8), 10, "cpu", 0)
    return sharing.get_shared().astype(np.float32)


NOISY = {"dp_noise_multiplier": 1.0, "local_epochs": 1}


def test_a_round_has_one_answer_whatever_is_asked_for(train, allow, tmp_path):
    allow(least_dp_noise_multiplier=1)
    first = train(**NOISY)
    changes = ({}, {"dp_noise_multiplier": 2.0}, {"dp_clip_norm": 9.0}, {"seed": 2}, {"learning_rate": 0.5})
    for changed in changes:
        assert np.array_equal(train(**{**NOISY, **changed}), first), changed
    second = train(2, **NOISY)
    assert not np.array_equal(second, first)
    assert np.array_equal(train(1, seed=3, **NOISY), first), "a server may go back by a round"
    train(3, **NOISY)
    with pytest.raises(FedpflError, match=r"round 1 is over: this client has answered round 3"):
        train(1, **NOISY)
    assert len(list((tmp_path / "state" / "key").rglob("answer-*"))) == 2


def test_answers_of_all_runs_are_counted(train, allow):
    allow(most_releases=2)
    train(1, "a")
    train(1, "a")  # the same answer
    train(1, "b")
    with refuses("to answer: it has answered 2 times, and most-releases is 2"):
        train(1, "c")
    allow(most_releases=3)
    train(1, "c")


def test_the_privacy_of_all_answers_has_an_end(train, allow):
    allow(most_epsilon=7)  # two with z = 1 spend 6.6, three 8.4
    with refuses(r"dp-noise-multiplier = 0\.0: most-epsilon is 7"):
        train()
    train(1, "a", **NOISY)
    train(1, "b", **NOISY)
    with refuses("to answer: its answers would spend ε = .* together, and most-epsilon is 7"):
        train(2, "a", **NOISY)


def test_numbers_of_a_run_are_bounded(values, allow):
    allow(most={"local-epochs": 3, "local-steps": 9})
    ask(values, local_epochs=3)
    with refuses("local-epochs = 4: at most 3 is allowed"):
        ask(values, local_epochs=4)
    ask(values, client_settings='{"0": {"local-epochs": 3}}')
    with refuses("local-epochs = 4: at most 3 is allowed"):
        ask(values, client_settings='{"0": {}, "1": {"weight": 9, "local-epochs": 4}}')
    with refuses("local-epochs = 10: at most 3 is allowed"):  # the default of what a message does not say
        ask({key: value for key, value in values.items() if key != "local-epochs"})
    with refuses("local-steps = 10: at most 9 is allowed"):
        ask(values, local_steps=10)
    allow(most={"clip-norm": 2})
    ask(values, clip_norm=2.0)
    with refuses(r"clip-norm = 0\.0: 0 is no limit, and at most 2 is allowed"):
        ask(values, clip_norm=0.0)
    for alone in ("local-epochs", "local-steps"):
        allow(most={alone: 3})
        with pytest.raises(PolicyError, match=f"most: bounds {alone} alone: bound local-epochs and local-steps, since"):
            ask(values)
    allow(most={"head-layers": 1})
    with refuses("head-layers = '2': at most 1 is allowed"):
        ask(values, head_layers="2")
    allow()
    with refuses(f"threads = 1024: at most {4 * os.cpu_count()} is allowed"):
        ask(values, threads=1024)


def test_work_on_a_message_ends_after_its_time(train, allow):
    allow(most_seconds=1)
    before = time.monotonic()
    with pytest.raises(PolicyError, match=r"ended the work: it took more than most-seconds = 1"):
        train(local_epochs=100_000)
    assert time.monotonic() - before < HANG_SECONDS
    train(local_epochs=1)


def test_memory_is_bounded(values, allow):
    path = allow(most_memory_bytes=8_000_000_000)
    large = {**values, "model": "resnet18"}
    messages = {
        one["model"]: {"state-key": "key", "round": 1, "personal-round": 0, "layout": ask(one).config["layout"]}
        for one in (values, large)
    }
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded():
        assert resource.getrlimit(resource.RLIMIT_AS) == (8_000_000_000, before[1])
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    code = f"""
import json, os, pathlib, resource, sys
from fedpfl.client.message_handler import handle
from fedpfl.core.payload import Payload
from test_device_policy import NODE, arrays_of
values, large, messages = map(json.loads, sys.argv[1:])
def train(settings):
    handle("train", Payload(messages[settings["model"]], {{}}, {{"shared": arrays_of(settings)}}), settings, NODE)
os.environ["{VARIABLE}"] = {str(path)!r}
train(values)  # what each round takes is there by now
in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
policy = pathlib.Path({str(path)!r})
tight = policy.with_name("tight.toml")
tight.write_text(policy.read_text().replace("8000000000", str(in_use + 20_000_000)))
os.environ["{VARIABLE}"] = str(tight)
try:
    train(large)
except Exception as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", code, *map(json.dumps, (values, large, messages))]
    paths = os.pathsep.join(sys.path)
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": paths})
    assert "ended the work: it needs more memory than most-memory-bytes = " in run.stdout, run


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    """Make a file of samples in a folder, and one outside of it."""
    rng = np.random.default_rng(1)
    for name in ("mine/a.npz", "secret/b.npz"):
        (tmp_path / name).parent.mkdir()
        np.savez(tmp_path / name, x=rng.integers(0, 256, (90, 8, 8, 1), np.uint8), y=np.arange(90) % 3)
    return tmp_path


OWN = {"dataset": "npz", "num_classes": 3, "num_clients": 3}


@pytest.mark.parametrize(
    "place",
    [
        "secret/b.npz",
        "mine/../secret/b.npz",
        "mine/link.npz",
        "mine/folder/b.npz",
        "mine-too/b.npz",
        "mine/circle/b.npz",
        "secret/none.npz",
        "mine/\0.npz",
    ],
)
def test_data_are_read_only_below_the_folders_wherever_links_and_dots_lead(values, allow, data, place):
    (data / "mine" / "link.npz").symlink_to(data / "secret" / "b.npz")
    (data / "mine" / "folder").symlink_to(data / "secret")
    (data / "mine" / "circle").symlink_to(data / "mine" / "circle")
    shutil.copytree(data / "secret", data / "mine-too")
    allow(data_folders=[str(data / "mine")])
    reason = "has a NUL character" if "\0" in place else "it is not below data-folders"
    with pytest.raises(FedpflError, match=f"data = .*: {reason}"):
        ask(values, **OWN, data=str(data / place))
    with pytest.raises(FedpflError, match=f"data-path = .*: {reason}"):
        handle("query", Payload({"state-key": "key"}), values, {**NODE, "data-path": str(data / place)})


def test_data_below_a_folder_are_read_also_through_links_to_it(values, allow, data):
    (data / "link").symlink_to(data / "mine")
    for folder, place in (("mine", "mine/a.npz"), ("link", "mine/a.npz"), ("mine", "link/a.npz"),
                          ("mine/a.npz", "mine/../mine/a.npz")):  # fmt: skip
        allow(data_folders=[str(data / folder)])
        assert ask(values, **OWN, data=str(data / place)).config["num-classes"] == 3
    node = {"data": str(data / "mine" / "a.npz")}
    numbered = {**values, **{key.replace("_", "-"): value for key, value in OWN.items()}}
    assert handle("query", Payload({"state-key": "key"}), numbered, node).config["num-clients"] == 3


def test_a_path_that_begins_with_a_tilde_lies_at_home(values, allow, data, home):
    home.mkdir()
    shutil.copy(data / "mine" / "a.npz", home / "a.npz")
    allow(data_folders=["~"])
    assert ask(values, **OWN, data="~/a.npz").config["num-classes"] == 3
    with refuses(r"data = '~/\.\./mine/a\.npz'"):
        ask(values, **OWN, data="~/../mine/a.npz")
    with refuses("data = '~nobody-here/a.npz'"):
        ask(values, **OWN, data="~nobody-here/a.npz")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_dir": "/etc"}, "data-dir = '/etc': it is not below data-folders"),
        ({"initial_weights": "/etc/weights.pt"}, "initial-weights = '/etc/weights.pt': it is not below data-folders"),
        ({"model": "hf:/etc"}, "model = '/etc': it is not below data-folders"),
        ({"model": "hf:somebody/model", "download_weights": True}, "model = 'somebody/model': it is not below"),
        ({"state_dir": "/var/tmp/state"}, "state-dir = '/var/tmp/state': it is not below state-folders"),
        ({"state_dir": "STATE/../elsewhere"}, "state-dir = .*: it is not below state-folders"),
    ],
)
def test_a_run_s_other_places_are_bounded_too(values, allow, tmp_path, settings, message):
    allow()
    ask(values)
    with refuses(message):
        ask(values, **{key: value.replace("STATE", str(tmp_path / "state")) if isinstance(value, str) else value
                       for key, value in settings.items()})  # fmt: skip


def test_every_setting_that_is_a_path_on_a_client_is_asked_for(values, allow):
    allow()
    on_clients = tagged("place") - tagged("server") - {"data", "state-dir"}  # which have tests of their own
    assert {"data-dir", "division-file", "initial-weights", "tokenizer"} <= on_clients
    for key in sorted(on_clients):
        if key != "data-dir":  # with a data set of one's own it is not read
            with refuses(f"{key} = '/elsewhere/file': it is not below data-folders"):
                policy.guard().check({**values, key: "/elsewhere/file"}, "")


def test_nothing_is_written_for_a_run_that_is_refused(values, allow, tmp_path, data):
    allow(data_folders=[str(data / "mine")])
    numbered = {**values, "num-clients": 3, "state-dir": str(tmp_path / "elsewhere")}
    told = Payload({"state-key": "key", "client": 1})
    with refuses("state-dir = "):
        handle("query", told, numbered, {"data-path": str(data / "mine" / "a.npz")})
    assert not (tmp_path / "elsewhere").exists()


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_an_honest_run_under_the_shipped_policy_has_the_same_bits(tmp_path, monkeypatch, home):
    results = []
    for name in ("without", "with"):
        runs = str(tmp_path / name)
        run = simulate(home / ".fedpfl", 3, LocalGrid, method="fedper", num_server_rounds=2, output_dir=runs)
        results.append(arrays(run, home / ".fedpfl"))
        shutil.rmtree(home / ".fedpfl" / "state")
        monkeypatch.setenv(VARIABLE, str(SHIPPED))
    without, under = results
    assert without.keys() == under.keys()
    assert any(name.startswith("client-") for name in under)
    assert all(np.array_equal(without[name], under[name]) for name in without)


def test_an_app_that_a_device_s_own_program_makes_needs_no_parts(allow, tmp_path):
    allow(methods=["fedper", "fedavg"], personal_arrays=False)

    def grid():
        return AppGrid(
            strategies.client_app(model=Net, data=lambda context: samples(context.node_config["partition-id"]))
        )

    assert strategies.FedPer(model=Net, num_classes=3).start(grid(), initial(), num_rounds=1).arrays
    allow(methods=["fedavg"])
    with pytest.raises(FedpflError, match="refuses method = 'fedper'"):
        strategies.FedPer(model=Net, num_classes=3).start(grid(), initial(), num_rounds=1)


def test_a_client_without_room_for_its_state_fails_alone_and_before_it_writes(tmp_path, allow, monkeypatch):
    values = federation(tmp_path, 3, method="fedper", num_server_rounds=2, local_epochs=1)
    path = allow(most_state_bytes=1000)

    def only_client_1(kind, client, payload):
        monkeypatch.setenv(VARIABLE, str(path) if client == 1 else "")

    run = run_federation(LocalGrid(3, values, intercept=only_client_1), values)
    for line in run.metrics():
        assert line["failed"].keys() == {"1"}
        assert "more bytes of state: state-folders hold" in line["failed"]["1"]
    folders = sorted(folder.name for folder in (tmp_path / "state").glob("*/client-*"))
    assert folders == ["client-00000", "client-00002"]


def test_files_without_arrays_need_room_too(tmp_path, allow, values):
    allow(most_state_bytes=0)
    for key in map(str, range(20)):
        with refuses("4096 more bytes of state"):
            handle("query", Payload({"state-key": key, "in-turn": True}), values, NODE)
    assert not list((tmp_path / "state").rglob("*"))


def test_room_for_state_is_that_of_all_runs_and_files(tmp_path, allow):
    folder = tmp_path / "state" / "old-run" / "client-00000"
    folder.mkdir(parents=True)
    (folder / "round-000001.safetensors").write_bytes(bytes(60_000))
    folders = 4096 * 2  # each folder and file is at least as large as this
    allow(most_state_bytes=100_000)
    policy.guard().require_room(40_000 - folders)
    with refuses(f"31809 more bytes of state: state-folders hold {60_000 + folders}, and most-state-bytes is 100000"):
        policy.guard().require_room(40_001 - folders)


def test_without_a_worker_the_client_app_refuses_and_logs_it(values, allow, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    monkeypatch.setattr(client_app, "_simulated", lambda: False)
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(tmp_path / "none.sock"))
    allow(methods=["fedavg"])
    message = Message(to_content(Payload({"state-key": "key"})), 7, "query")
    reply = client_app.answer(message, Context(1, 7, NODE, RecordDict(), values))
    assert "refuses method = 'fedper': methods has fedavg" in reply.error.reason
    assert reply.error.reason in caplog.text


# -- the worker ------------------------------------------------------------------------------------------------------


def test_the_worker_refuses_and_logs_it_and_goes_on(values, allow, monkeypatch):
    path = str(allow(methods=["fedper"]))
    # Only the worker has the policy, and this process, which asks, has none.
    monkeypatch.delenv(VARIABLE)
    with workers("--policy", path) as start:
        monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(start.path))
        start()
        assert f"the policy is {path}" in start.log()
        with pytest.raises(FedpflError, match="refuses method = 'fedavg': methods has fedper"):
            forward("query", Payload(), {**values, "method": "fedavg"}, NODE)
        assert re.search(r"query of client 1, round -: the policy of .* refuses method = 'fedavg'", start.log())
        # What a server sends cannot take its place.
        with pytest.raises(FedpflError, match="refuses method = 'fedavg'"):
            forward("query", Payload({VARIABLE: "", "policy": ""}), {
                **values, "method": "fedavg", "policy": "", VARIABLE: "",
            }, {**NODE, "policy": ""})  # fmt: skip
        assert forward("query", Payload(), values, NODE).config["client"] == 1


def test_a_worker_does_not_start_with_a_policy_that_it_does_not_understand(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text("method = 1\n")
    for option, message in (
        (str(path), "there is no key 'method'"),
        (str(tmp_path), "cannot be read"),
        ("", "cannot be"),
    ):
        with workers("--policy", option) as start:
            assert start(wait=False).wait(HANG_SECONDS) == 1
            assert re.search(rf"error: .*{message}", start.log())


def test_a_worker_in_an_old_python_reads_a_policy(values, allow, monkeypatch):
    python = old_python("tomli")
    with workers("--policy", str(allow(methods=["fedper"]))) as start:
        monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(start.path))
        start(python)
        assert forward("query", Payload(), values, NODE).config["client"] == 1
        with pytest.raises(FedpflError, match="refuses method = 'fedavg'"):
            forward("query", Payload(), {**values, "method": "fedavg"}, NODE)


def test_a_python_that_reads_no_toml_says_what_it_needs(values, allow, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(checksummed_files.importlib, "import_module", missing)
    allow()
    with pytest.raises(PolicyError, match="needs the package tomli to read TOML"):
        policy._read.__wrapped__(Path(os.environ[VARIABLE]))
