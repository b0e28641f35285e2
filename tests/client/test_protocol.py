"""Frames: what comes back is what went, and no bytes do harm."""

import io
import json
import math
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedpfl.client import protocol
from fedpfl.core import code_hash
from fedpfl.core.errors import ConfigError
from fedpfl.core.payload import Payload

PACKAGE = Path(protocol.__file__).parents[1]
scalars = st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
vectors = npst.arrays(st.sampled_from([np.float32, np.float16, np.int64]), npst.array_shapes(max_dims=3, min_side=0))
payloads = st.builds(
    Payload,
    config=st.dictionaries(st.text(max_size=10), scalars, max_size=4),
    metrics=st.dictionaries(st.text(max_size=10), numbers, max_size=4),
    arrays=st.dictionaries(st.sampled_from(["shared", "a", "b"]), vectors, max_size=3),
)


def packed(header, payload):
    stream = io.BytesIO()
    protocol.write(stream, header, payload)
    return stream.getvalue()


def raw(header=b"{}", arrays=b"", magic=protocol.MAGIC):
    return struct.pack(">8sIQ", magic, len(header), len(arrays)) + header + arrays


@settings(deadline=None)
@given(payloads)
def test_a_frame_brings_back_what_went(payload):
    header, received = protocol.read(io.BytesIO(packed({"kind": "train"}, payload)))
    assert header == {"kind": "train"}
    assert (received.config, received.metrics) == (payload.config, payload.metrics)
    assert {key: type(value) for key, value in received.config.items()} == {
        key: type(value) for key, value in payload.config.items()
    }
    assert received.arrays.keys() == payload.arrays.keys()
    for name, array in payload.arrays.items():
        assert received.arrays[name].dtype == array.dtype
        assert received.arrays[name].shape == array.shape
        assert received.arrays[name].tobytes() == array.tobytes()


def test_infinite_and_missing_numbers_travel():
    _, received = protocol.read(io.BytesIO(packed({}, Payload(metrics={"loss": math.inf, "other": math.nan}))))
    assert received.metrics["loss"] == math.inf
    assert math.isnan(received.metrics["other"])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(content):
    with pytest.raises((protocol.ProtocolError, EOFError)):
        protocol.read(io.BytesIO(content))


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_arbitrary_headers_and_arrays_are_refused(header, arrays):
    with pytest.raises(protocol.ProtocolError):
        protocol.read(io.BytesIO(raw(header, arrays)))


@settings(deadline=None)
@given(st.data())
def test_a_damaged_frame_is_refused_or_still_a_frame(data):
    content = bytearray(packed({"kind": "train"}, Payload({"round": 1}, {"x": 0.5}, {"shared": np.arange(4.0)})))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        _, received = protocol.read(io.BytesIO(bytes(content[:cut])))
    except (protocol.ProtocolError, EOFError):
        return
    assert isinstance(received, Payload)


@pytest.mark.parametrize("header", [
    b"[]", b"{}", b'{"config": [], "metrics": {}}', b'{"config": {"a": null}, "metrics": {}}',
    b'{"config": {"a": [1]}, "metrics": {}}', b'{"config": {}, "metrics": {"a": "1"}}',
    b'{"config": {}, "metrics": {"a": true}}', b"\xff", b"[" * 100_000, b'{"config": {"a": ' + b"9" * 5000 + b"}}",
])  # fmt: skip
def test_headers_that_hold_something_else_are_refused(header):
    with pytest.raises(protocol.ProtocolError):
        protocol.read(io.BytesIO(raw(header, packed_arrays())))


def packed_arrays():
    from safetensors.numpy import save

    return save({})


@pytest.mark.parametrize(("header", "arrays", "what"), [(2**32 - 1, 0, "header"), (2, 2**63, "arrays")])
def test_a_frame_that_is_too_large_is_refused_before_it_is_read(header, arrays, what):
    stream = io.BytesIO(struct.pack(">8sIQ", protocol.MAGIC, header, arrays))
    with pytest.raises(protocol.ProtocolError, match=f"whose {what} take"):
        protocol.read(stream)


def test_a_frame_that_would_be_too_large_is_not_written():
    stream = io.BytesIO()
    with pytest.raises(protocol.ProtocolError, match="header"):
        protocol.write(stream, {}, Payload({"layout": "x" * protocol.MAX_HEADER_BYTES}))
    assert stream.getvalue() == b""


def test_another_protocol_is_named_as_such():
    with pytest.raises(protocol.ProtocolError, match="does not speak this protocol"):
        protocol.read(io.BytesIO(raw(magic=b"GET / HT")))
    message = "app and worker are of different versions of fedpfl: one uses fedpfl9, the other fedpfl1; install"
    with pytest.raises(protocol.VersionError, match=message):
        protocol.read(io.BytesIO(raw(magic=b"fedpfl9\n")))


def test_the_header_is_text_and_the_arrays_are_safetensors():
    content = packed({"kind": "query"}, Payload({"a": 1}, {}, {"shared": np.ones(3, np.float32)}))
    _, header_bytes, arrays_bytes = struct.unpack(">8sIQ", content[:20])
    assert json.loads(content[20 : 20 + header_bytes]) == {"kind": "query", "config": {"a": 1}, "metrics": {}}
    assert len(content) == 20 + header_bytes + arrays_bytes


def test_the_socket_s_place(monkeypatch, tmp_path):
    monkeypatch.delenv(protocol.SOCKET_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert protocol.socket_path() == tmp_path / ".fedpfl" / "worker.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert str(protocol.socket_path()) == "/run/user/1/fedpfl/worker.sock"
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, "here.sock")
    assert str(protocol.socket_path()) == f"{os.getcwd()}/here.sock"  # noqa: PTH109
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, "/" + "x" * 200)
    with pytest.raises(ConfigError, match="at most 103 bytes"):
        protocol.socket_path()


def test_the_hash_is_of_the_source_that_trains_and_of_nothing_else(tmp_path):
    def copied(name):
        return shutil.copytree(PACKAGE, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    here, same, edited, more = code_hash.of_package(), copied("same"), copied("edited"), copied("more")
    # What a wheel, an app's bundle, another system or an older command line may differ in.
    (same / "methods" / "__pycache__").mkdir()
    (same / "methods" / "__pycache__" / "fedavg.cpython-38.pyc").write_bytes(b"compiled")
    (same / "methods" / "fedavg.py").write_bytes(
        (PACKAGE / "methods" / "fedavg.py").read_bytes().replace(b"\n", b"\r\n")
    )
    shutil.rmtree(same / "study")
    (same / "cli" / "run.py").write_text("changed")
    assert code_hash.of_package(same) == here
    with (edited / "training" / "loop.py").open("a") as file:
        file.write("\n")
    (more / "methods" / "mine.py").touch()
    assert len({here, code_hash.of_package(edited), code_hash.of_package(more)}) == 3
