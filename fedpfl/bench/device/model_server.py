"""``fedpfl-worker serve``: a client's model behind HTTP on loopback, for programs of the same device.

``POST /predict`` takes an image, or JSON ``{"inputs": […]}`` with samples as a data set has them; ``GET /health`` tells
which model answers. A model that is written while it runs is used from the next request on. If that one is damaged, the
one before it goes on answering.

Python's own server: of the small ones, waitress repaired weaknesses in 3.0.1, which no longer supports Python 3.8 (its
CHANGES), and uvicorn's timeouts are for idle connections and its own end, none for a request (its page of settings).
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

from ...client.device_model import LoadedModel, load_model, newest
from ...core.errors import DataError, FedpflError, StateError, printable
from ...data.federation import AS_IT_IS, PIXELS, TOKENS
from .browsers import refusal
from .predict import answers, read_image
from .worker import end_at_signals

logger = logging.getLogger("fedpfl.bench.device.model_server")

LOOPBACK = "127.0.0.1"
PORT = 8077
MAX_BYTES = 2**23
# Connections, each with a thread. More of them wait in the socket's queue.
MAX_CONNECTIONS = 32
# Predictions that run or wait for the one that runs: fewer than connections, so that /health has an answer meanwhile.
MAX_PREDICTIONS = 8
MAX_SAMPLES = 1000
MAX_ANSWER_BYTES = 2**23
# A number in JSON, with what stands around it; and a sample without its numbers.
NUMBER_BYTES, SAMPLE_BYTES = 26, 100
# For a request to arrive, and for its answer to leave.
REQUEST_SECONDS = 10.0
BLOCK = 2**16
_TYPES = {PIXELS: np.uint8, TOKENS: np.int64, AS_IT_IS: np.float32}


class ModelServer(ThreadingHTTPServer):
    """Answers with the latest model of a client's folder ``model``, or of the one above it.

    Listens on loopback; port 0 takes any free one, a port that is taken raises ``FedpflError``. A request's body has at
    most ``most_bytes``.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = PORT, most_bytes: int = MAX_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self.problem = ""
        self.predicting = threading.Lock()
        self.predictions = threading.BoundedSemaphore(MAX_PREDICTIONS)
        self._loading = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._seen: tuple[object, ...] = ()
        self._model: LoadedModel | None = None
        try:
            super().__init__((LOOPBACK, port), _PredictionHandler)
        except OSError as error:
            raise FedpflError(f"port {port} of {LOOPBACK} cannot be opened: {error.strerror}") from error

    def model(self) -> LoadedModel:
        """Return the latest model that can be read, or raise ``FedpflError``."""
        with self._loading:
            return self._latest()

    def _latest(self) -> LoadedModel:
        try:
            file = newest(self.folder)
            status = file.stat()
            seen = file, status.st_ino, status.st_mtime_ns, status.st_size
            if seen != self._seen:
                self._model, self.problem = load_model(file), ""
                self._seen = seen
                logger.info("round %d of %s answers", self._model.about["round"], self._model.about["run"])
        except (FedpflError, OSError) as error:  # OSError: the file has just been replaced
            if str(error) != self.problem:
                logger.warning("%s", error)
            self.problem = str(error)
        if self._model is None:
            raise StateError(self.problem)
        return self._model

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a request, when one is free."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log in one line that a peer went away; another error with its traceback."""
        error = sys.exc_info()[1]
        if isinstance(error, (ConnectionError, socket.timeout)):
            logger.info("a request was dropped: %s", error)
        else:
            logger.exception("a request failed")


class _Arriving(io.RawIOBase):
    """Reads what a connection sends until a time, however slowly it comes."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until = connection, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(1e-3, self._until - time.monotonic()))
        return self._connection.recv_into(buffer)


class _PredictionHandler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: ModelServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Arriving(self.connection, time.monotonic() + REQUEST_SECONDS))

    def parse_request(self) -> bool:
        """Refuse requests that a page in a browser sends."""
        if not super().parse_request():
            return False
        reason = refusal(self.headers.get("Host", ""), self.headers.get("Origin"))
        if reason:
            self._answer(403, {"error": reason})
        return not reason

    def do_GET(self) -> None:
        if self.path != "/health":
            self._answer(404, {"error": "only GET /health and POST /predict exist"})
            return
        try:
            about, problem = self.server.model().about, self.server.problem
        except FedpflError as error:
            self._answer(503, {"status": "no model", "error": str(error)})
            return
        told = {key: about[key] for key in ("run", "round", "client", "method", "model", "input-shape", "tested")}
        self._answer(200, {"status": "ok", **told, **({"error": problem} if problem else {})})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/predict":
            self._answer(404, {"error": "only GET /health and POST /predict exist"})
        elif not self._kind().startswith("image/") and self._kind() != "application/json":
            self._answer(415, {"error": "Content-Type must be application/json, or an image's, such as image/png"})
        elif not (length.isascii() and length.isdigit() and len(length) < 20) or "Transfer-Encoding" in self.headers:
            self._answer(411, {"error": "Content-Length must be the number of bytes"})
        elif int(length) > self.server.most_bytes:
            self._answer(413, {"error": f"a request may have at most {self.server.most_bytes} bytes"})
            self._drop(int(length))
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self._answer(400, {"error": f"{len(body)} of {length} bytes have arrived"})
            elif not self.server.predictions.acquire(blocking=False):
                self._answer(503, {"error": f"{MAX_PREDICTIONS} requests are waiting already; ask again later"})
            else:
                try:
                    status, content = self._predict(body)
                finally:
                    self.server.predictions.release()
                self._answer(status, content)

    def _kind(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def _predict(self, body: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            with self.server.predicting:
                model = self.server.model()
                x, most = self._inputs(body, model.about), most_samples(model.about)
                if x.ndim and len(x) > most:
                    return 413, {"error": f"a request may have at most {most} samples"}
                predictions = answers(model, x)
        except DataError as error:
            return 400, {"error": str(error)}
        except FedpflError as error:
            return 503, {"error": str(error)}
        return 200, {"run": model.about["run"], "round": model.about["round"], "predictions": predictions}

    def _inputs(self, body: bytes, about: Mapping[str, Any]) -> np.ndarray:
        if self._kind().startswith("image/"):
            return read_image(io.BytesIO(body), "the image", about)
        kind = _TYPES[about["scaling"]]
        try:
            sent = json.loads(body)
            sent = sent["inputs"] if isinstance(sent, dict) else sent
            x = np.asarray(sent)
        except KeyError:
            raise DataError('the body has no key "inputs"') from None
        except (ValueError, RecursionError) as error:
            raise DataError(f'the body must be an image, or JSON {{"inputs": […]}}: {error}') from error
        if x.dtype.kind not in ("iu" if about["scaling"] != AS_IT_IS else "iuf"):
            raise DataError(f"inputs must be samples of one shape, of numbers that {kind.__name__} holds")
        if about["scaling"] == PIXELS and x.size and (x.min() < 0 or x.max() > 255):
            raise DataError("inputs must be pixels, 0 … 255")
        x = x.astype(kind)
        if not np.isfinite(x).all():
            raise DataError("inputs hold a value that is not finite")
        return x

    def _answer(self, status: int, content: Mapping[str, Any]) -> None:
        body = (json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")
        self.connection.settimeout(REQUEST_SECONDS)  # of all that is sent, not of each part
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drop(self, length: int) -> None:
        """Read on, within the limit: a peer that is still sending would not see the answer."""
        left = min(length, self.server.most_bytes)
        while left > 0:
            block = self.rfile.read(min(left, BLOCK))
            if not block:
                return
            left -= len(block)

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.info("%s", printable(format % arguments))


def most_samples(about: Mapping[str, Any]) -> int:
    """Return how many samples a request may have, so that its answer is not too long."""
    names = sum(len(json.dumps(name, ensure_ascii=False).encode()) for name in about["class-names"])
    of_one = SAMPLE_BYTES + 2 * names + NUMBER_BYTES * about["num-classes"]
    return max(1, min(MAX_SAMPLES, int(MAX_ANSWER_BYTES // of_one)))


def main(arguments: Sequence[str]) -> None:
    """Run ``fedpfl-worker serve``."""
    parser = argparse.ArgumentParser(
        prog="fedpfl-worker serve", description="Serve the model that a client has written, on loopback."
    )
    parser.add_argument("--model", metavar="FOLDER", required=True, help="the folder `model` of a client's state")
    parser.add_argument("--port", type=int, default=PORT, help=f"{PORT} by default; 0: any free one")
    parser.add_argument("--most-bytes", type=int, default=MAX_BYTES, help=f"of a request; {MAX_BYTES} by default")
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 2**16 or not 0 < options.most_bytes <= 2**31:
        parser.error("--port must be 0 … 65535, and --most-bytes 1 … 2147483648")
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    end_at_signals()
    try:
        server = ModelServer(Path(options.model).expanduser(), options.port, options.most_bytes)
    except FedpflError as error:
        sys.exit(f"error: {error}")
    try:
        server.model()
    except FedpflError:  # it has been logged, and may come later
        logger.info("no model yet; the first one that is written answers")
    logger.info("ready at http://%s:%d, process %d", LOOPBACK, server.server_address[1], os.getpid())
    server.serve_forever()
