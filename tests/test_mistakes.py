"""Mistakes that users make: each is answered at once by one line that names the thing, the value and what is allowed.

They are those that new users made who had only the documentation, their own data, a model and a method of their own and
a notebook. Of each kind (a key, a value, settings that do not fit together, data, a model, a method, a command, an
argument in Python) the ones that were seen stand here, with the others of the same kind that the settings, the data's
forms and the hooks of a method allow.
"""

from __future__ import annotations

import shlex
import time
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app

pytestmark = pytest.mark.usefixtures("elsewhere")

# CPU seconds, on a slow machine too; most take a hundredth.
AT_ONCE = 3.0
FEW = {
    "num_server_rounds": 1, "local_epochs": 1, "num_clients": 2, "partitioner": "dirichlet-client", "model": "mlp",
    "train_samples": 32, "test_samples": 16, "method": "fedavg", "quiet": True, "workers": 0,
}  # fmt: skip


def answered(done: str, *parts: str) -> None:
    assert "\n" not in done.strip() and len(done) < 1200, done
    for word in parts:
        assert word in done, done


SETTINGS = {
    # keys
    "learning-rte=0.1": "learning-rte = 0.1: there is no such setting; did you mean learning-rate",
    "dirichlet_alpha=0.1": "dirichlet_alpha = 0.1: there is no such setting; did you mean dirichlet-alpha?",
    "rounds=5": "rounds = 5: there is no such setting; did you mean .*num-server-rounds",
    "epochs=5": "did you mean tune-epochs or local-epochs",
    "zzz=1": "zzz = 1: there is no such setting; `fedpfl config` lists all keys",
    "ditto-pull=1.0 method='fedavg'": "ditto-pull = 1.0: is a setting of ditto, and the method is fedavg",
    # their form
    "method=\"fedavg": "is no value: a text with a quote",
    "learning-rate=fast": "learning-rate = 'fast': must be a number",
    "method = 'fedavg'": "must be key=value pairs, without spaces around '='",
    "none.toml": "run-config = 'none.toml': cannot be read (No such file or directory)",
    # values
    "learning-rate=-0.1": "learning-rate = -0.1: must be > 0",
    "learning-rate=nan": "learning-rate = nan: must be > 0",
    "learning-rate='0.1'": "learning-rate = '0.1': must be a number",
    'state-dir="a\\u0000b"': "state-dir = 'a\\x00b': has a NUL character",
    "output-dir='~no-such-user/runs'": "~no-such-user: this machine has no such user",
    "batch-size=1.5": "batch-size = 1.5: must be a whole number",
    "seed=1000000000000000000000": "seed = 1000000000000000000000: must be a whole number of at most 64 bits",
    "num-server-rounds=true": "num-server-rounds = True: must be a whole number",
    "personal-head=1": "personal-head = 1: must be true or false",
    "local-epochs=0": "local-epochs = 0: must be at least 1",
    "fraction-train=2.0": "fraction-train = 2.0: must be > 0 and at most 1",
    "method='FedAvgg'": "did you mean fedavg",
    "dataset='cifar'": "did you mean cifar10 or cifar100?",
    "partitioner='diriclet'": "did you mean dirichlet",
    "model='resnet'": "did you mean resnet",
    "optimizer='adm'": "or the name of a class in torch.optim.*did you mean adam",
    "learning-rate-schedule='cos'": "must be one of constant, exponential, cosine; did you mean cosine?",
    "metrics='acuracy'": "metrics = 'acuracy': must be one of accuracy, .*; did you mean accuracy",
    "choose-by='f1-macro'": "choose-by = 'f1-macro': must be one of accuracy, loss",
    "device='gpu'": "device = 'gpu': must be one of cpu, cuda",
    "wire-dtype='float8'": "must be one of float32, float16",
    "trainable='heads'": "trainable = 'heads': must be all, head, lora, adapters or a pattern of the model's arrays",
    "listeners='mine'": "listeners = 'mine': must be MODULE:NAME for one of your own",
    "client-models='0-3'": "must be a number or a range of clients, a colon and a model: 0-9:fedavg-cnn",
    "run-name='a b'": "run-name = 'a b': must be letters, digits",
    "output-dir='/dev/null/x'": "output-dir = '/dev/null/x': cannot be written",
    "initial-weights='none.pt'": "none.pt': cannot be read on this machine (No such file or directory)",
    "device-models='maybe'": "must be one of auto, always, never",
    "local-epochs=4611686018427387904": "local-epochs = 4611686018427387904: must be at least 1 and at most 1000000",
    "local-steps=2000000000": "local-steps = 2000000000: must be at least 0 and at most 1000000",
    "tune-epochs=2000000000": "tune-epochs = 2000000000: must be at least 0 and at most 1000000",
    "fedrep-p-epochs=2000000000 method='fedrep'": "fedrep-p-epochs = 2000000000: must be at least 0 and at most",
    "client-settings='{\"0\": {\"local-epochs\": 2000000000}}'": "local-epochs = 2000000000: must be at least 1 and",
    # what does not fit together
    "early-stop=3": "early-stop = 3: needs validation-fraction and evaluate-every above 0",
    "feddecomp-lora-epochs=99 method='feddecomp'": "feddecomp-lora-epochs = 99: must be below local-epochs",
    "class-weights='balanced' loss='mse'": "class-weights = 'balanced': must be none for loss = mse",
    "min-replies=50": "min-replies = 50: must be at most 2: so many clients are asked in a round",
    "classes-per-client=20 partitioner='pathological'": "classes-per-client = 20: must be at most 10, the number of cl",
    "num-clients=5000 partitioner='iid'": "would have 0 samples, min-samples is 10: use fewer clients",
    "partitioner='natural'": "partitioner = 'natural': needs data that name the owner of each sample",
    "model='transformer'": "needs texts, but the input is 1x8x8; models that fit: ",
    "dataset='table'": "data = '': must be the path of a table",
    "dataset='table' data='none.csv'": "none.csv: no such file",
    "data='mine.csv'": "is not used with dataset = \"digits\"; use one of npz, image-folder, table",
    "loss='mse'": "loss = 'mse': does not fit digits, which has classes; targets are an array y of floats",
}  # fmt: skip


@pytest.mark.parametrize("text", SETTINGS)
def test_a_setting(text):
    few = " ".join(
        f"{key.replace('_', '-')}={value!r}" for key, value in FEW.items() if key not in ("quiet", "workers")
    )
    began = time.process_time()
    done = CliRunner().invoke(app, ["run", "--quiet", "--workers", "0", "-c", few, "-c", text])
    assert time.process_time() - began < AT_ONCE and done.exit_code in (1, 2)
    assert done.stderr.startswith("error: ")
    answered(done.stderr, *SETTINGS[text].split(".*"))


COMMANDS = {
    "bogus": "there is no command bogus; `fedpfl --help` lists all",
    "comapre fedavg fedper": "there is no command comapre; did you mean compare?",
    "run fedavg": "app = 'fedavg': is not the folder of a Flower app.*settings follow -c",
    "run --clients 3": "No such option '--clients'",
    "run --method fedper": "No such option '--method'. It is a setting: -c 'method=…'",
    "run --rounds 3": "No such option '--rounds'. Settings with that word: -c 'num-server-rounds=…'",
    "run --workers -1": "workers = -1: must be a whole number, at least 0",
    "run --workers two": "workers = two: must be a whole number, at least 0",
    "watch --web --port 70000": "port = 70000: must be a whole number, 0 to 65,535",
    "run --resume none": "run = 'none': there is no such run in",
    "compare fedavg": "a comparison needs two methods or more, or a setting to vary (--vary)",
    "compare fedavg,fedpr": "method = 'fedpr': must be one of",
    "compare parts:Mine fedbn": "method = 'parts:Mine': there is no module parts in",
    "compare fedavg fedper --tune learning-rate": "tune = 'learning-rate': must be key=value",
    "compare fedavg fedper --tune learning-rte=0.1": "learning-rte = '0.1': there is no such setting",
    "sweep": "give a grid, or several seeds",
    "sweep --grid learning-rate=fast": "learning-rate = 'fast': must be a number",
    "sweep --grid seed=1,2": "seed = 1: cannot be set here; use --seeds N",
    "experiment run none": "experiment = 'none': must be one of .*, or a .toml file",
    "show none": "run = 'none': there is no such run in",
    "report": "must be the name of at least one run",
    "export none --format onx": "format = 'onx': must be one of state-dict, torchscript, onnx; did you mean onnx?",
    "analyse fairnes": "analysis = 'fairnes': must be one of",
    "config --updat": "No such option '--updat'. Did you mean '--update'?",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command(line):
    began = time.process_time()
    done = CliRunner().invoke(app, shlex.split(line), prog_name="fedpfl")
    assert (done.exit_code, time.process_time() - began < AT_ONCE) == (2, True)
    answered(done.stderr, *COMMANDS[line].split(".*"))


def refused(message: str, make, *args, **options) -> None:
    began = time.process_time()
    with pytest.raises(fedpfl.FedpflError) as error:
        make(*args, **options)
    assert time.process_time() - began < AT_ONCE
    answered(str(error.value), *message.split(".*"))


def both(**settings):
    return lambda: fedpfl.compare(["fedavg", "fedper"], **settings)


def of_others(params, lr):
    return torch.optim.SGD([torch.ones(1, requires_grad=True)], lr)


def half(params, lr):
    return 3


def closed(params, lr):
    return torch.optim.LBFGS(params, lr=lr)


CALLS = {
    "workers = -1: must be at least 0": lambda: fedpfl.run(workers=-1),
    "workers = 1.5: must be a whole number": lambda: fedpfl.run(workers=1.5),
    "num-clients = '10': must be a whole number": lambda: fedpfl.run(num_clients="10"),
    "learning-rate = [0.1]: must be a number": lambda: fedpfl.run(learning_rate=[0.1]),
    "is a list, and must be a subclass of fedpfl.Method": lambda: fedpfl.run(method=["fedavg", "fedper"]),
    "callbacks = 'the class Listener'.*give an instance": lambda: fedpfl.run(callbacks=[fedpfl.Listener]),
    "callbacks = 'a Listener': must be a list of": lambda: fedpfl.run(callbacks=fedpfl.Listener()),
    "run = 'none': there is no such run in": lambda: fedpfl.load("none"),
    "none: no such model": lambda: fedpfl.load_model("none"),
    "run = 'digits': needs a name": lambda: fedpfl.run("fedavg", "digits"),
    "is a dict, and must be a subclass of fedpfl.Method": lambda: fedpfl.run({"method": "fedavg"}),
    "methods = ['fedavg']: a comparison needs two": lambda: fedpfl.compare("fedavg"),
    "methods = []: a comparison needs two": lambda: fedpfl.compare(),
    "method = 'fedpr': must be one of": lambda: fedpfl.compare("fedavg, fedpr"),
    "method = 'fedpe': must be one of": lambda: fedpfl.compare("fedavg", "fedpe"),
    "grid = 'learning_rate': must be settings with the values": lambda: fedpfl.sweep("learning_rate"),
    "sweep = 'fedavg': needs a name": lambda: fedpfl.sweep({"learning_rate": [0.1]}, "fedavg"),
    "method = 'fedbn': cannot be set here": both(method="fedbn"),
    "seeds = [1, 2]: must be a whole number": both(seeds=[1, 2]),
    "seed = 1: cannot be set here": both(seed=1),
    "run-name = 'a': cannot be set here": both(run_name="a"),
    "tune = 'learning_rate': needs at least one value": both(tune={"learning_rate": []}),
    "must have a list of values: {'learning_rate': [0.1]}": lambda: fedpfl.sweep({"learning_rate": 0.1}),
    "select = 'best': must be one of test, validation": lambda: fedpfl.sweep({"learning_rate": [0.1]}, select="best"),
    "ditto-pull = 1.0: is a setting of ditto, and the method is fedavg": lambda: fedpfl.run(**FEW, ditto_pull=1.0),
    "optimizer = 'test_mistakes:half': returns an int; it must return an optimiser": lambda: fedpfl.run(
        **FEW, optimizer=half
    ),
    "optimizer = 'test_mistakes:of_others': moves none of the params": lambda: fedpfl.run(**FEW, optimizer=of_others),
    "optimizer = 'test_mistakes:closed': raises TypeError": lambda: fedpfl.run(**FEW, optimizer=closed),
    "is a setting of ditto, and the method is fedavg": lambda: fedpfl.sweep({"ditto_pull": [1.0]}, method="fedavg"),
}


@pytest.mark.parametrize("message", CALLS)
def test_an_argument(message):
    refused(message, CALLS[message])


def clients(n=40, features=3, change=lambda x, y: (x, y)):
    x, y = change(np.random.default_rng(1).normal(size=(n, features)).astype(np.float32), np.arange(n) % 2)
    return [(x, y, x, y)] * 2


def frame(**columns):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": np.arange(40.0), "label": np.arange(40) % 2, **columns})


DATA = {
    "client 0 is an int; it must be (x_train, y_train, x_test, y_test)": lambda: [1, 2],
    "the list of clients is empty": lambda: [],
    "returns a ndarray; it must return a fedpfl.Dataset, a pandas DataFrame": lambda: np.zeros((4, 3)),
    "y_train has 39 labels for 40 samples": lambda: clients(change=lambda x, y: (x, y[:-1])),
    "y_train[0] is -1: labels must be 0": lambda: clients(change=lambda x, y: (x, y - 1)),
    "use mse or multi-label; of classes y is whole, y.ast": lambda: clients(change=lambda x, y: (x, np.eye(2)[y])),
    "x_train holds a value that is not finite": lambda: clients(change=lambda x, y: (x * np.nan, y)),
    "x_train is <U32 40×3: must be": lambda: clients(change=lambda x, y: (x.astype(str), y)),
    "client 0 has 0 training samples, min-samples is 10": lambda: clients(n=0),
    "its samples are float32 2, those of client 0 float32 3": lambda: [*clients(), *clients(features=2)],
    "raises ZeroDivisionError: division by zero (test_mistakes.py": lambda: lambda: 1 / 0,
    "no column 'label' (label-column); it has a": lambda: frame().drop(columns="label"),
    "column 'c': holds str, not numbers; ignore-columns = \"c\" leaves out such columns": lambda: frame(c="x"),
    "row 2, column 'c' (empty), row 3, column 'c' (empty), …; impute = \"mean\" fills": lambda: frame(c=np.nan),
    "column 'person_id' seems to name the owner of each row": lambda: frame(person_id=np.arange(40) // 20),
    "'0.5' is not a class: must be a whole number or a name": lambda: frame(label=np.arange(40) % 4 / 2),
    "divides by classes, but dataset has numbers as targets": lambda: frame(label=np.arange(40) + 0.5),
}  # fmt: skip


@pytest.mark.parametrize("message", DATA)
def test_data(message):
    settings = {key: value for key, value in FEW.items() if key not in ("num_clients", "partitioner")}
    refused(message, fedpfl.run, **{**settings, "data": DATA[message]()})


def test_files_of_data(elsewhere):
    refused('is not used with dataset = "digits"', fedpfl.run, **FEW, data="none.npz")
    folder = elsewhere / "people"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.csv").write_text("a,label\n1,0\n2,1\n")
    (folder / "notes.txt").write_text("Recorded in May.")
    refused("notes.txt: is not a client's file, which must be .npz", fedpfl.run, dataset="clients", data=str(folder))


def linear(inputs=64, outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


MODELS = {
    "is a Sequential that is built; give a function that builds one": linear(),
    "returns an int; it must return a torch.nn.Module": lambda: 3,
    "gives 3 numbers for a sample; the data need 10": lambda: linear(outputs=3),
    "does not take inputs of 1x8x8": lambda: linear(inputs=3),
    "needs an argument 'channels'; it is given input_shape, num_classes": lambda channels: linear(),
    "raises ZeroDivisionError: division by zero (test_mistakes.py": lambda: 1 / 0,
    "gives probabilities; leave out the softmax at its end": lambda: nn.Sequential(*linear(), nn.Softmax(1)),
    "model = 'nets:Net': there is no module nets in": "nets:Net",
    "there is no Net in .*json/__init__.py; it has": "json:Net",
    "model = 'mpl': must be one of .*did you mean mlp": "mpl",
    "model = 'cnn-1d': needs series": "cnn-1d",
}


@pytest.mark.parametrize("message", MODELS)
def test_a_model(message):
    refused(message, fedpfl.run, **{**FEW, "model": MODELS[message]})


def test_a_model_for_images_on_a_table():
    message = "model = 'small-cnn': needs images .*but the input is 3; models that fit: mlp, mlp-200"
    settings = {key: value for key, value in FEW.items() if key not in ("num_clients", "partitioner")}
    refused(message, fedpfl.run, **{**settings, "model": "small-cnn", "data": clients()})


@dataclass(frozen=True)
class Plain:
    mu: float = 1.0


def wrapped(self, model):
    model.base = nn.Sequential(model.base)
    return model


def half_misspelt(self, local):
    return [fedpfl.Phase(fedpfl.everything, 1), fedpfl.Phase("haed.weight".__eq__, 1)]


def raising(self, *arguments):
    return {}["left"]


METHODS = {
    "method = 'Mine': raises KeyError: 'left' (test_mistakes.py, line ": {"__init__": raising},
    "method = 'mine.extras': raises KeyError: 'left' (test_mistakes.py, line ": {"extras": property(raising)},
    "method = 'mine.aggregation': raises KeyError: 'left'": {"aggregation": property(raising)},
    "method = 'mine.build': raises KeyError: 'left'": {"build": raising},
    "method = 'mine.sharing': raises KeyError: 'left'": {"is_shared": lambda self, name, model: raising(self)},
    "method = 'mine.remarks': raises KeyError: 'left'": {"remarks": raising},
    "has 'shedule', which nothing calls; did you mean 'schedule'?": {"shedule": None},
    "has is_shared(self, name), which must be is_shared(self, name, model)": {"is_shared": lambda self, name: True},
    "the class Mine has the name 'fedavg', which is a method of fedpfl": {"name": "fedavg"},
    "the name 'My Method'; it must be lower-case words with dashes": {"name": "My Method"},
    "must be a dataclass of settings: @dataclass(frozen=True)": {"Settings": type("Settings", (), {})},
    'Plain.mu must be made by setting(default, "its meaning")': {"Settings": Plain},
    "aggregation returns the class Mean, and must return a fedpfl.Aggregation": {"aggregation": fedpfl.Mean},
    "extras returns a str, and must return a list of fedpfl.Extra": {"extras": ["memory"]},
    "build returns None, and must return a torch.nn.Module": {"build": lambda self, model: None},
    "is_shared returns None for 'base.fc1.weight', and must return True or False": {
        "is_shared": lambda self, name, model: None
    },
    "schedule returns None, and must return a list of fedpfl.Phase": {"schedule": lambda self, local: None},
    "schedule: phase 2 trains no parameter of the model, base.": {"schedule": half_misspelt},
    "in `build`, but has no `export` that gives it back: write one, or raise fedpfl.NoPlainModel": {"build": wrapped},
    "schedule returns a Phase, and must return a list": {"schedule": lambda self, local: fedpfl.Phase(any, 1)},
    "conclude returns a dict, and must return a fedpfl.Payload": {"conclude": lambda self, local: {}},
    "array 'a': the method declares none of this name": {
        "conclude": lambda self, local: fedpfl.Payload(arrays={"a": np.zeros(3, np.float32)})
    },
}


@pytest.mark.parametrize("message", METHODS)
def test_a_method(message):
    def run():
        fedpfl.run(**{**FEW, "method": type("Mine", (fedpfl.Method,), {"name": "mine", **METHODS[message]})})

    refused(message, run)


FUNCTIONS = {
    "metrics = .*raises ZeroDivisionError": {"metrics": [lambda outputs, y: 1 / 0]},
    "metrics = .*returns a str; it must return a number, or a sum and a count": {"metrics": [lambda outputs, y: "a"]},
    "metrics = .*returns a Correlation; it must return a number, or a sum and a count": {
        "metrics": [lambda outputs, y: namedtuple("Correlation", "statistic, pvalue")(0.5, 0.01)]
    },
    "metrics = .*makes 0.5 and 0.7: must be finite, the count a whole number": {
        "metrics": [lambda outputs, y: (0.5, 0.7)]
    },
    "choose-by = 'metrics': is smaller for right answers than for wrong ones": {
        "metrics": [lambda outputs, y: (outputs.argmax(1) != y).double().mean()],
        "choose_by": "metrics",
    },
    "metrics = 'f2': must be one of accuracy": {"metrics": ["f2"]},
    "augmentation = .*takes 1 positional argument but 2 were given": {"augmentation": lambda x: x},
    "it must return a tensor of torch.float32": {"augmentation": lambda x, rng: x[:1]},
}


@pytest.mark.parametrize("message", FUNCTIONS)
def test_a_function(message):
    refused(message, fedpfl.run, **{**FEW, **FUNCTIONS[message]})


def test_an_experiment_with_a_mistake_does_not_hide_the_others(elsewhere):
    (elsewhere / "experiments").mkdir()
    good = 'title = "Good"\npaper = ""\nmetrics = ["personalised-last"]\nseeds = 1\n[rows]\na = { method = "fedavg" }\n'
    scales = "".join(f'[scale.{name}]\nremarks = "All."\n' for name in ("smoke", "small"))
    values = '[paper-values]\nmissing = "there is none"\n'
    (elsewhere / "experiments" / "good.toml").write_text(f"{good}[columns]\nb = {{}}\n{scales}{values}")
    (elsewhere / "experiments" / "wrong.toml").write_text("title = 3")
    done = CliRunner().invoke(app, ["experiment", "list"])
    assert done.exit_code == 0 and "Good" in done.stdout, done.output
    assert "wrong.toml" in done.stderr and done.stderr.count("\n") == 1
