"""`fedpfl-worker predict`: the model that a client has written answers for files."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from old_python import old_python
from support import FEW_SAMPLES, LocalGrid, federation, run_federation
from waiting import HANG_SECONDS

from fedpfl.bench.device.predict import main, read_samples
from fedpfl.client.device_model import load_model
from fedpfl.core.errors import DataError
from fedpfl.data import DataSettings, load
from fedpfl.data.federation import federated_data
from fedpfl.setup.config import Config

CLIENTS = 2


def written(tmp_path, **settings):
    """Return the folder of client 0's model, and the arrays of its data as they were read."""
    defaults = {"num_server_rounds": 3, "local_epochs": 1, "threads": 1, "device_models": "always", **FEW_SAMPLES}
    values = federation(
        tmp_path, CLIENTS, **{"method": "fedper", "early_stop": 9, "validation_fraction": 0.2, **defaults, **settings}
    )
    folder = run_federation(LocalGrid(CLIENTS, values), values)
    config = Config.parse(folder.config())
    arrays = federated_data(config.data, CLIENTS, config.run.seed).arrays(0)
    return next((tmp_path / "state").glob("*/client-00000/model")), arrays


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return written(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """A model for four numbers a sample, and three classes with names."""
    folder = tmp_path_factory.mktemp("flowers")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    np.savez(folder / "flowers.npz", x=x, y=x[:, :3].argmax(1), classes=np.array(["iris", "lily", "rose"]))
    return written(folder, dataset="npz", data=str(folder / "flowers.npz"), model="mlp")


def lines(capsys, *arguments):
    main([str(argument) for argument in arguments])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_predictions_have_the_accuracy_that_was_noted(digits, tmp_path, capsys):
    model, arrays = digits
    np.savez(tmp_path / "test.npz", x=arrays["x_test"])
    predictions = lines(capsys, model, tmp_path / "test.npz")
    right = [line["class"] == str(y) for line, y in zip(predictions, arrays["y_test"], strict=True)]
    assert sum(right) == load_model(model).about["tested"]["correct"]
    assert [line["sample"] for line in predictions] == list(range(len(right)))
    assert all(line["number"] == int(max(line["probabilities"], key=line["probabilities"].get)) for line in predictions)
    assert all(abs(sum(line["probabilities"].values()) - 1) < 1e-3 for line in predictions)


def test_an_image_is_what_its_array_is(digits, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    model, arrays = digits
    np.savez(tmp_path / "one.npz", x_test=arrays["x_test"][:1])
    image.fromarray(arrays["x_test"][0, :, :, 0]).save(tmp_path / "one.png")
    array, picture = lines(capsys, model, tmp_path / "one.npz", tmp_path / "one.png")
    assert picture == {**array, "file": str(tmp_path / "one.png")}
    image.new("L", (9, 8)).save(tmp_path / "wide.png")
    image.new("RGB", (8, 8)).save(tmp_path / "red.png")
    (tmp_path / "none.png").write_bytes(b"no image")
    about = load_model(model).about
    for name, message in (
        ("wide", "is 9×8 pixels; the model takes 8×8"),
        ("red", "is in colour"),
        ("none", "none.png: not a readable image of the formats BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP$"),
    ):
        with pytest.raises(DataError, match=message):
            read_samples(tmp_path / f"{name}.png", about)


def test_a_table_is_read_with_names_of_classes(flowers, tmp_path, capsys):
    model, arrays = flowers
    rows = [
        f"{','.join(map(repr, row.tolist()))},{y}" for row, y in zip(arrays["x_test"], arrays["y_test"], strict=True)
    ]
    (tmp_path / "test.csv").write_text("\n".join(["a,b,c,d,kind", *rows]))
    predictions = lines(capsys, model, tmp_path / "test.csv", "--ignore-columns", "kind")
    names = np.array(["iris", "lily", "rose"])
    right = sum(line["class"] == names[y] for line, y in zip(predictions, arrays["y_test"], strict=True))
    assert right == load_model(model).about["tested"]["correct"]
    about = load_model(model).about
    for text, message in (
        ("a,b,c,d,e\n1,2,3,4,5", "has 5 columns of features; the model takes 4"), ("", "the file is empty"),
        ("a,b,c,d\n1,2,3", "line 2: has 3 cells"), ("a,b,c,d\n1,2,3,x", "line 2, column 'd': 'x' is not a number$"),
        ("a,b,c,d\n1,2,3,nan", "line 2, column 'd': is empty$"), ("a,b,c,d\n", "no samples"),
    ):  # fmt: skip
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            read_samples(tmp_path / "bad.csv", about)
    with pytest.raises(DataError, match="has no column 'z'"):
        read_samples(tmp_path / "test.csv", about, ["z"])


TABLE = """a,flag,mode,label
1.5,true,car,x
-2,False,bus,y
3e2,TRUE,bus,x
"""
# Settings of a run, and what the tables may have with them.
READ = [({}, TABLE), ({"impute": "mean"}, TABLE.replace("-2,", ",").replace("TRUE", "n/a").replace(",car", ","))]


@pytest.mark.parametrize(("options", "text"), READ)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_model_reads_the_table_that_it_was_trained_on(tmp_path, options, text, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(text)
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(io.StringIO(text))
        truth = {"true": True, "false": False}
        frame["flag"] = frame.flag.map(lambda flag: truth.get(str(flag).lower())).astype("boolean")
        frame.to_parquet(path, index=False)
    settings = DataSettings(dataset="table", data=str(path), category_columns="mode", **options)
    data = load(settings)
    assert data.feature_names[:3] == ("a", "flag", "mode=bus") and data.x_train.shape == (3, len(data.feature_names))
    about = {"feature-names": [*data.feature_names], "input-shape": [len(data.feature_names)], "vocabulary": 0}
    about.update({"fill": 0} if options else {})
    assert np.array_equal(read_samples(path, about, ["label"]), data.x_train, equal_nan=True)
    if options:
        with pytest.raises(DataError, match=r"column '(a|flag|mode)': is empty, also wrong: [^;]*$"):
            read_samples(path, {key: value for key, value in about.items() if key != "fill"}, ["label"])
    with pytest.raises(DataError, match="has no column 'mode'"):
        read_samples(path, about, ["label", "mode"])


def test_columns_of_a_table_are_matched_by_the_names_of_the_model_s(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a},{1000 + b},{int(a > 0)}" for a, b in rng.normal(size=(240, 2)).tolist()]
    (tmp_path / "people.csv").write_text("\n".join(["age,bp,label", *rows]))
    options = {"dataset": "table", "data": str(tmp_path / "people.csv"), "standardize": "client", "min_samples": 2}
    model, _ = written(tmp_path, model="mlp", **options)
    about = load_model(model).about
    assert about["feature-names"] == ["age", "bp"]
    for text in ("age,bp\n0.5,1000\n", "bp,age\n1000,0.5\n", "bp;age\n1000;0.5\n"):
        (tmp_path / "one.csv").write_text(text)
        assert read_samples(tmp_path / "one.csv", about).tolist() == [[0.5, 1000]]
    (tmp_path / "one.csv").write_text("age,weight\n0.5,1000\n")
    with pytest.raises(DataError, match="its columns are not those of the model; missing: bp; extra: weight"):
        read_samples(tmp_path / "one.csv", about)


def test_errors_are_one_line(digits, tmp_path):
    model, _ = digits
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    (tmp_path / "a.txt").write_text("a")
    np.savez(tmp_path / "wide.npz", x=np.zeros((1, 9, 9, 1), np.uint8))
    for arguments, message in (
        ([tmp_path, "a.npz"], "holds no model of a client"), ([model, tmp_path / "none.npz"], "no such file"),
        ([model, tmp_path / "y.npz"], "has neither an array x nor x_test"),
        ([model, tmp_path / "a.txt"], "must be an image"), ([model, tmp_path], "is a folder; name the files in it"),
        ([model, tmp_path / "wide.npz"], r"wide.npz: samples are uint8 1×9×9×1; the model takes uint8 n×8×8×1"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match=f"error: .*{message}"):
            main([str(argument) for argument in arguments])


@pytest.mark.parametrize("python", ["this", "3.8"])
def test_the_command_runs_without_flower(digits, tmp_path, python):
    model, arrays = digits
    np.savez(tmp_path / "test.npz", x=arrays["x_test"])
    code = "import sys; sys.modules['flwr'] = None; from fedpfl.bench.device.worker import main; main()"
    command = [sys.executable if python == "this" else old_python(), "-c", code, "predict", str(model), "test.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    numbers = [json.loads(line)["number"] for line in done.stdout.splitlines()]
    expected = load_model(model).predict(arrays["x_test"])
    # Another torch may round another way: a sample between two classes may fall to either.
    clear = np.ptp(np.sort(expected, axis=1)[:, -2:], axis=1) > 1e-3
    assert (np.array(numbers) == expected.argmax(1))[clear].all()
    assert clear.any()
