"""Apps in the form of Flower's published examples: the same numbers under FedAvg, then a personalised method each.

``published/`` has them as their authors would write them, without a word of fedpfl. What a method takes is a list of
replaced lines, which the page counts.
"""

from __future__ import annotations

import difflib
import re
import shutil
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from flower_apps import AppGrid, samples
from flwr.app import Context, RecordDict

APPS = Path(__file__).with_name("published")
# Of this example only the server is another one than its author's quickstart's.
LIKE = {"advanced": "quickstart"}
PAGE = Path(__file__).parents[2] / "docs/how-to/from-a-flower-app.md"
SETTINGS = {
    "batch-size": 12, "local-epochs": 2, "learning-rate": 0.1, "num-server-rounds": 4, "fraction-evaluate": 1.0,
}  # fmt: skip

FEDAVG = [("from flwr.serverapp.strategy import FedAvg", "from fedpfl.strategies import FedAvg")]
KEEP = [
    (
        "from flwr.clientapp import ClientApp",
        "from fedpfl.strategies import keep\nfrom flwr.clientapp import ClientApp",
    ),
    ("app = ClientApp()", "app = ClientApp(mods=[keep()])"),
]


def kept(strategy):
    """Return the changes that an app takes for a method that shares by names; ``strategy`` begins its call."""
    name = strategy.partition("(")[0]
    return {
        "server_app.py": [
            ("from flwr.serverapp.strategy import FedAvg", f"from fedpfl.strategies import {name}"),
            ("strategy = FedAvg(", f"strategy = {strategy}"),
        ],
        "client_app.py": KEEP,
    }


def fitted(strategy):
    """Return the changes that the quickstart takes for a method with phases: `fit` is the body of its functions."""
    name = strategy.partition("(")[0]
    reply = """
    train_loss = train_fn(
        model,
        trainloader,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
        device,
    )

    model_record = ArrayRecord(model.state_dict())
    metrics = {
        "train_loss": train_loss,
        "num-examples": len(trainloader.dataset),
    }
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
"""
    tested = """
    eval_loss, eval_acc = test_fn(
        model,
        valloader,
        device,
    )

    metrics = {
        "eval_loss": eval_loss,
        "eval_acc": eval_acc,
        "num-examples": len(valloader.dataset),
    }
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
"""
    loaded = """    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cpu")
    model.to(device)

"""
    return {
        "server_app.py": [
            ("from flwr.serverapp.strategy import FedAvg", f"from fedpfl.strategies import {name}"),
            ("strategy = FedAvg(", f"strategy = {strategy}"),
            ('{"lr": lr}', '{"learning-rate": lr}'),
        ],
        "client_app.py": [
            ("import torch\nfrom flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict\n",
             "from fedpfl.strategies import fit\nfrom flwr.app import Context, Message\n"),
            ("from task import test as test_fn\nfrom task import train as train_fn\n", ""),
            ("@app.train()", "@app.query()\n@app.train()"),
            (loaded, ""), (reply, "    return fit(msg, context, model=Net, data=trainloader)\n"),
            ("    _, valloader = ", "    loaders = "),
            (tested, "    return fit(msg, context, model=Net, data=loaders)\n"),
        ],
    }  # fmt: skip


# By app and method: what is replaced in which file.
CHANGES = {
    ("quickstart", "FedAvg"): {"server_app.py": FEDAVG},
    ("advanced", "FedAvg"): {"strategy.py": FEDAVG},
    ("devices", "FedAvg"): {"server_app.py": FEDAVG},
    ("tabular", "FedAvg"): {"server_app.py": FEDAVG},
    ("lora", "FedAvg"): {"server_app.py": FEDAVG},
    ("quickstart", "FedPer"): kept('FedPer(head="fc2", '),
    ("advanced", "FedPer"): {
        "strategy.py": [
            ("from flwr.serverapp.strategy import FedAvg", "from fedpfl.strategies import FedPer"),
            ("(FedAvg)", "(FedPer)"),
        ],
        "server_app.py": [("CustomFedAvg(f", 'CustomFedAvg(head="fc2", f')],
        "client_app.py": KEEP,
    },
    ("devices", "FedPer"): kept('FedPer(head="fc2", '),
    ("tabular", "FedPer"): kept('FedPer(keep=("4", "5")'),
    ("lora", "FedPer"): kept('FedPer(keep="*classifier*", '),
    ("quickstart", "FedRep"): fitted("FedRep(model=Net, "),
    ("quickstart", "Ditto"): fitted("Ditto(model=Net, "),
    ("devices", "FedBN"): kept("FedBN("),
    ("lora", "FedSA-LoRA"): kept("FedSALoRA("),
}


def strategy_of(method):
    return "FedAvg" if method == "Flower" else method.replace("-", "")


def changed(text, replacements):
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return text


def written(app, method, folder):
    """Write an app as it is with a method; return how many lines it lost and got."""
    for name in filter(None, (LIKE.get(app), app)):
        shutil.copytree(APPS / name, folder, dirs_exist_ok=True)
    lost = got = 0
    for name, replacements in CHANGES.get((app, method), {}).items():
        before = (folder / name).read_text()
        after = changed(before, replacements)
        (folder / name).write_text(after)
        lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[2:].strip()]
        lost += sum(line.startswith("- ") for line in lines)
        got += sum(line.startswith("+ ") for line in lines)
    return lost, got


def run(app, method, folder, monkeypatch):
    """Run an app with a method; return the arrays of its end, and the metrics of each round."""
    pytest.importorskip("peft") if app == "lora" else None
    written(app, method, folder)
    for name in ("task", "client_app", "server_app", "strategy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    torch.manual_seed(0)
    grid = AppGrid(import_module("client_app").app)
    for client, context in enumerate(grid.contexts):
        context.run_config = dict(SETTINGS)
        if app == "devices":
            context.node_config = {"dataset-path": str(folder / f"node-{client}")}
            (folder / f"node-{client}").mkdir()
            torch.save(tuple(map(torch.from_numpy, samples(client))), folder / f"node-{client}" / "train.pt")
    scores = []
    server = import_module("server_app")
    home, name = (import_module("strategy"), "CustomFedAvg") if app == "advanced" else (server, strategy_of(method))
    strategy = getattr(home, name)
    original = strategy.aggregate_evaluate

    def noted(self, server_round, replies):
        metrics = original(self, server_round, replies)
        scores.append(dict(metrics or {}))
        return metrics

    monkeypatch.setattr(strategy, "aggregate_evaluate", noted)
    context = Context(1, 0, {}, RecordDict(), dict(SETTINGS))
    torch.manual_seed(0)
    server.main(grid, context)
    for name in ("task", "client_app", "server_app", "strategy"):
        sys.modules.pop(name, None)
    return context.state["final"], scores


@cache
def of_flower(app):
    """Run an app as it is."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return run(app, "Flower", Path(folder) / app, patch)


@pytest.mark.parametrize("app", [app for app, method in CHANGES if method == "FedAvg"])
def test_fedavg_of_fedpfl_gives_the_numbers_of_flowers(app, tmp_path, monkeypatch):
    theirs, wanted = of_flower(app)
    ours, scores = run(app, "FedAvg", tmp_path / "ours", monkeypatch)
    assert [*ours] == [*theirs]
    for name, array in theirs.items():
        if "tracked" not in name:  # Flower makes a fraction of it
            np.testing.assert_allclose(ours[name].numpy(), array.numpy(), rtol=0, atol=1e-5)
            assert ours[name].dtype == array.dtype
    assert len(scores) == len(wanted) == 4
    for one, other in zip(scores, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


STAYS = {
    ("quickstart", "FedPer"): ["fc2.weight", "fc2.bias"], ("devices", "FedPer"): ["fc2.weight", "fc2.bias"],
    ("advanced", "FedPer"): ["fc2.weight", "fc2.bias"], ("tabular", "FedPer"): ["4", "5"],
    ("quickstart", "FedRep"): ["fc2.weight", "fc2.bias"],
    ("quickstart", "Ditto"): [],
}  # fmt: skip


@pytest.mark.parametrize(("app", "method"), [pair for pair in CHANGES if pair[1] != "FedAvg"])
def test_a_personalised_method_in_few_lines(app, method, tmp_path, monkeypatch):
    """What stays is not in the result, and nodes that number their classes in their own order are served."""
    one, of_one = of_flower(app)
    arrays, scores = run(app, method, tmp_path / "ours", monkeypatch)
    stays = [name for name in one if name not in arrays]
    if app == "lora":
        assert stays == [name for name in one if "classifier" in name or ("lora_B" in name and method != "FedPer")]
    elif method == "FedBN":
        assert stays and all(name.startswith("norm.") for name in stays)
    else:
        assert stays == STAYS[app, method]
    (of_round,) = {name for name in scores[-1] if name in ("eval_acc", "accuracy", "personalised-accuracy")}
    (global_score,) = (value for name, value in of_one[-1].items() if name in ("eval_acc", "accuracy"))
    assert scores[-1][of_round] > global_score


def test_the_page_counts_the_lines(tmp_path):
    """A row for each app, a column for each method: lines that go and lines that come."""
    text = PAGE.read_text()
    header, _, *rows = re.search(r"\| app \|.*?\n\n", text, re.S)[0].strip().splitlines()
    methods = [cell.strip() for cell in header.strip("|").split("|")][1:]
    counted = {}
    for row in rows:
        label, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        app = label.partition("`")[2].partition("`")[0]
        counted |= {(app, method): cell for method, cell in zip(methods, cells, strict=True) if cell}
    wanted = {}
    for app, method in CHANGES:
        lost, got = written(app, method, tmp_path / app / method)
        wanted[app, method] = f"−{lost} +{got}"
    assert counted == wanted
