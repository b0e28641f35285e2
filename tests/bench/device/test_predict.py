"""`fedpfl-worker predict` and `serve`: the model that a client has written answers for files and over HTTP."""

import contextlib
import http.client
import io
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from old_python import old_python
from support import FEW_SAMPLES, LocalGrid, federation, run_federation
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.device import model_server
from fedpfl.bench.device.model_server import ModelServer
from fedpfl.bench.device.predict import answers, main, read_samples
from fedpfl.client.device_model import load_model
from fedpfl.core.errors import DataError, FedpflError
from fedpfl.core.files import write_atomically
from fedpfl.data import DataSettings, load
from fedpfl.data.federation import federated_data
from fedpfl.setup.config import Config

CLIENTS = 2


def written(tmp_path, **settings):
    """Return the folder of client 0's model, and the arrays of its data as they were read."""
    given = {"num_server_rounds": 3, "local_epochs": 1, "threads": 1, "device_models": "always", **FEW_SAMPLES}
    values = federation(
        tmp_path, CLIENTS, **{"method": "fedper", "early_stop": 9, "validation_fraction": 0.2, **given, **settings}
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
    found = lines(capsys, model, tmp_path / "test.npz")
    right = [line["class"] == str(y) for line, y in zip(found, arrays["y_test"], strict=True)]
    assert sum(right) == load_model(model).about["tested"]["correct"]
    assert [line["sample"] for line in found] == list(range(len(right)))
    assert all(line["number"] == int(max(line["probabilities"], key=line["probabilities"].get)) for line in found)
    assert all(abs(sum(line["probabilities"].values()) - 1) < 1e-3 for line in found)


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
    for name, words in (
        ("wide", "is 9×8 pixels; the model takes 8×8"),
        ("red", "is in colour"),
        ("none", "none.png: not a readable image of the formats BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP$"),
    ):
        with pytest.raises(DataError, match=words):
            read_samples(tmp_path / f"{name}.png", about)


def test_a_table_is_read_with_names_of_classes(flowers, tmp_path, capsys):
    model, arrays = flowers
    rows = [
        f"{','.join(map(repr, row.tolist()))},{y}" for row, y in zip(arrays["x_test"], arrays["y_test"], strict=True)
    ]
    (tmp_path / "test.csv").write_text("\n".join(["a,b,c,d,kind", *rows]))
    found = lines(capsys, model, tmp_path / "test.csv", "--ignore-columns", "kind")
    names = np.array(["iris", "lily", "rose"])
    right = sum(line["class"] == names[y] for line, y in zip(found, arrays["y_test"], strict=True))
    assert right == load_model(model).about["tested"]["correct"]
    about = load_model(model).about
    for text, words in (
        ("a,b,c,d,e\n1,2,3,4,5", "has 5 columns of features; the model takes 4"), ("", "the file is empty"),
        ("a,b,c,d\n1,2,3", "line 2: has 3 cells"), ("a,b,c,d\n1,2,3,x", "line 2, column 'd': 'x' is not a number$"),
        ("a,b,c,d\n1,2,3,nan", "line 2, column 'd': is empty$"), ("a,b,c,d\n", "no samples"),
    ):  # fmt: skip
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(DataError, match=words):
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


@pytest.mark.parametrize(("given", "text"), READ)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_model_reads_the_table_that_it_was_trained_on(tmp_path, given, text, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(text)
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(io.StringIO(text))
        truth = {"true": True, "false": False}
        frame["flag"] = frame.flag.map(lambda flag: truth.get(str(flag).lower())).astype("boolean")
        frame.to_parquet(path, index=False)
    settings = DataSettings(dataset="table", data=str(path), category_columns="mode", **given)
    data = load(settings)
    assert data.feature_names[:3] == ("a", "flag", "mode=bus") and data.x_train.shape == (3, len(data.feature_names))
    about = {"feature-names": [*data.feature_names], "input-shape": [len(data.feature_names)], "vocabulary": 0}
    about.update({"fill": 0} if given else {})
    assert np.array_equal(read_samples(path, about, ["label"]), data.x_train, equal_nan=True)
    if given:
        with pytest.raises(DataError, match=r"column '(a|flag|mode)': is empty$"):
            read_samples(path, {key: value for key, value in about.items() if key != "fill"}, ["label"])
    with pytest.raises(DataError, match="has no column 'mode'"):
        read_samples(path, about, ["label", "mode"])


def test_columns_of_a_table_are_matched_by_the_names_of_the_model_s(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a},{1000 + b},{int(a > 0)}" for a, b in rng.normal(size=(240, 2)).tolist()]
    (tmp_path / "people.csv").write_text("\n".join(["age,bp,label", *rows]))
    given = {"dataset": "table", "data": str(tmp_path / "people.csv"), "standardize": "client", "min_samples": 2}
    model, _ = written(tmp_path, model="mlp", **given)
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
    for arguments, words in (
        ([tmp_path, "a.npz"], "holds no model of a client"), ([model, tmp_path / "none.npz"], "no such file"),
        ([model, tmp_path / "y.npz"], "has neither an array x nor x_test"),
        ([model, tmp_path / "a.txt"], "must be an image"), ([model, tmp_path], "is a folder; name the files in it"),
        ([model, tmp_path / "wide.npz"], r"wide.npz: samples are uint8 1×9×9×1; the model takes uint8 n×8×8×1"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match=f"error: .*{words}"):
            main([str(argument) for argument in arguments])


@pytest.mark.parametrize("python", ["this", "3.8"])
def test_the_command_runs_without_flower(digits, tmp_path, python):
    model, arrays = digits
    np.savez(tmp_path / "test.npz", x=arrays["x_test"])
    code = "import sys; sys.modules['flwr'] = None; from fedpfl.bench.device.worker import main; main()"
    command = [sys.executable if python == "this" else old_python(), "-c", code, "predict", str(model), "test.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["number"] for line in done.stdout.splitlines()]
    expected = load_model(model).predict(arrays["x_test"])
    # Another torch may round another way: a sample between two classes may fall to either.
    clear = np.ptp(np.sort(expected, axis=1)[:, -2:], axis=1) > 1e-3
    assert (np.array(found) == expected.argmax(1))[clear].all()
    assert clear.any()


@contextmanager
def serving(folder, most_bytes=100_000):
    """Yield what sends a request to a server in this process, and returns status and content."""
    server = ModelServer(folder, 0, most_bytes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def ask(method, path, body=None, **headers):
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=HANG_SECONDS)
        kind = {"Content-Type": "application/json"} if method == "POST" else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**kind, **given})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        return answer.status, content

    ask.port, ask.server = server.server_address[1], server
    try:
        yield ask
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_command_serves_until_it_is_told_to_end(digits):
    code = "from fedpfl.bench.device.worker import main; main()"
    command = [sys.executable, "-c", code, "serve", "--model", str(digits[0]), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            ready = (re.search(r"ready at http://127\.0\.0\.1:(\d+),", line) for line in process.stderr)
            port = int(next(found for found in ready if found)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
            connection.request("GET", "/health")
            assert json.loads(connection.getresponse().read())["round"] == 3
            process.terminate()
            assert process.wait(HANG_SECONDS) == 0
        finally:
            process.kill()


def test_health_and_predictions_over_http(digits):
    model, arrays = digits
    with serving(model.parent) as ask:
        status, health = ask("GET", "/health")
        assert (status, health["status"], health["round"], health["method"]) == (200, "ok", 3, "fedper")
        status, answer = ask("POST", "/predict", json.dumps({"inputs": arrays["x_test"].tolist()}))
        assert status == 200
        expected = load_model(model).predict(arrays["x_test"]).argmax(1).tolist()
        assert [one["number"] for one in answer["predictions"]] == expected
        assert ask("GET", "/")[0] == ask("POST", "/other", "{}")[0] == 404


def test_images_over_http(digits, tmp_path):
    image = pytest.importorskip("PIL.Image")
    model, arrays = digits
    image.fromarray(arrays["x_test"][0, :, :, 0]).save(tmp_path / "one.png")
    with serving(model) as ask:
        status, answer = ask("POST", "/predict", (tmp_path / "one.png").read_bytes(), Content_Type="image/png")
        assert status == 200
        assert answer["predictions"][0]["number"] == load_model(model).predict(arrays["x_test"][:1]).argmax()


def test_bad_requests_are_refused_and_the_server_lives_on(digits):
    model, arrays = digits
    with serving(model) as ask:
        assert ask("POST", "/predict", b"x" * 100_001)[0] == 413
        assert ask("POST", "/predict", Content_Length=str(10**15))[0] == 413
        assert ask("POST", "/predict", Content_Length="many")[0] == 411
        for body in (
            b"", b"{", b"\xff", b"[" * 90_000, b"{}", b'{"inputs": [[1], [1, 2]]}', b'{"inputs": "a"}', b"7",
            b'{"inputs": [[[[300]]]]}', b'{"inputs": [[[[0.5]]]]}', b'{"inputs": []}', b'{"inputs": [[[[1]]]]}',
        ):  # fmt: skip
            status, answer = ask("POST", "/predict", body)
            assert (status, list(answer)) == (400, ["error"]), body
        assert ask("POST", "/predict", b'{"input": []}')[1] == {"error": 'the body has no key "inputs"'}
        assert ask("POST", "/predict", b"no image", Content_Type="image/png")[0] == 400
        assert ask("POST", "/predict", json.dumps(arrays["x_test"][:1].tolist()))[0] == 200


def test_what_a_page_in_a_browser_sends_is_refused(digits):
    model, arrays = digits
    body = json.dumps(arrays["x_test"][:1].tolist())
    with serving(model) as ask:
        own = f"http://127.0.0.1:{ask.port}"
        assert ask("GET", "/health", Host="rebound.example")[0] == 403
        assert ask("POST", "/predict", body, Origin="http://evil.example")[0] == 403
        assert ask("POST", "/predict", body, Origin=own)[0] == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""):
            assert ask("POST", "/predict", body, Content_Type=kind)[0] == 415


def test_what_a_request_says_steers_no_terminal(digits, caplog):
    caplog.set_level(logging.INFO)
    with serving(digits[0]) as ask, socket.create_connection(("127.0.0.1", ask.port), HANG_SECONDS) as connection:
        connection.sendall(b"GET /\x1b[2J\x9b HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        while connection.recv(2**16):
            pass
    assert "GET / [2J" in caplog.text
    assert all(char.isprintable() or char == "\n" for char in caplog.text)


def test_samples_and_answers_have_limits_and_are_numbers(flowers, monkeypatch):
    monkeypatch.setattr(model_server, "MAX_SAMPLES", 3)
    with serving(flowers[0]) as ask:
        assert ask("POST", "/predict", json.dumps([[0.5] * 4] * 3))[0] == 200
        assert ask("POST", "/predict", json.dumps([[0.5] * 4] * 4)) == (
            413, {"error": "a request may have at most 3 samples"},
        )  # fmt: skip
        status, answer = ask("POST", "/predict", json.dumps([[3e38, -3e38, 3e38, -3e38]]))
        assert (status, "the model's answer is not finite" in answer["error"]) == (400, True)
    about = {"class-names": ["é" * 1000] * 500, "num-classes": 500}
    assert model_server.most_samples(about) * 500 * 4000 < 2 * model_server.MAX_ANSWER_BYTES


def test_slow_requests_end_and_health_answers_while_predictions_wait(digits, monkeypatch):
    monkeypatch.setattr(model_server, "REQUEST_SECONDS", 1.0)
    model, arrays = digits
    body = json.dumps(arrays["x_test"][:1].tolist())
    with serving(model) as ask, contextlib.ExitStack() as stack:
        with ask.server.predicting:
            waiting = [InThread(ask, "POST", "/predict", body) for _ in range(model_server.MAX_PREDICTIONS)]
            wait_until(lambda: ask.server.predictions._value == 0)
            assert ask("GET", "/health")[0] == 200
            assert ask("POST", "/predict", body)[0] == 503
        assert [thread.result()[0] for thread in waiting] == [200] * len(waiting)
        stopping = threading.Event()
        stack.callback(stopping.set)
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ask.port)))
            for _ in range(model_server.MAX_CONNECTIONS)
        ]
        for number, connection in enumerate(slow):
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" if number % 2 else b"G")

        def drip():
            while not stopping.wait(0.1):
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"x")

        dripping = InThread(drip)
        assert ask("GET", "/health")[0] == 200
        stopping.set()
        dripping.result()


def test_a_new_model_is_used_and_a_damaged_one_is_not(digits, tmp_path):
    model, _ = digits
    with serving(tmp_path / "model") as ask:
        assert ask("GET", "/health")[0] == ask("POST", "/predict", "[]")[0] == 503

        def arrive(number):
            (tmp_path / "model").mkdir(exist_ok=True)
            for ending in ("safetensors", "json"):
                name = f"round-00000{number}.{ending}"
                shutil.copy(model / name, tmp_path / "model" / name)

        arrive(2)
        assert ask("GET", "/health")[1]["round"] == 2
        shutil.copy(model / "round-000003.json", tmp_path / "model")
        status, health = ask("GET", "/health")
        assert (status, health["round"]) == (200, 2)
        assert re.search(r"round-000003\.safetensors: cannot be read", health["error"])
        arrive(3)
        status, health = ask("GET", "/health")
        assert (status, health["round"], "error" in health) == (200, 3, False)


def test_while_models_come_each_answer_is_one_model_s_whole(digits, tmp_path):
    model, arrays = digits
    samples = arrays["x_test"][:20]
    expected = {number: answers(load_model(model / f"round-00000{number}.json"), samples) for number in (2, 3)}
    assert expected[2] != expected[3]
    folder, stop, seen = tmp_path / "model", threading.Event(), {2: 0, 3: 0}
    folder.mkdir()

    def arrive(number):
        # As a client writes: the arrays first, each file whole, and the older model goes.
        for ending in ("safetensors", "json"):
            name = f"round-00000{number}.{ending}"
            write_atomically(folder / name, (model / name).read_bytes())

    def swap():
        while not stop.is_set():
            arrive(3)
            for ending in ("json", "safetensors"):
                (folder / f"round-000003.{ending}").unlink()

    arrive(2)
    body = json.dumps({"inputs": samples.tolist()})
    with serving(folder, 10_000_000) as ask:
        swapping = InThread(swap)
        try:
            while min(seen.values()) < 5:
                for status, answer in [
                    asked.result() for asked in [InThread(ask, "POST", "/predict", body) for _ in range(4)]
                ]:
                    assert (status, answer["predictions"]) == (200, expected[answer["round"]])
                    seen[answer["round"]] += 1
        finally:
            stop.set()
            swapping.result()


def test_a_taken_port_is_told(digits):
    with serving(digits[0]) as ask, pytest.raises(FedpflError, match=f"port {ask.port} of 127.0.0.1 cannot be opened"):
        ModelServer(digits[0], ask.port)
