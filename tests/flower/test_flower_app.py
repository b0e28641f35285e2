"""`fedpfl new --flower` on a real SuperLink with two SuperNodes, and strategies in Flower's simulation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flower_parts import SECONDS, Flower

from fedpfl.bench.superlink import free_port
from fedpfl.launch.new_project import OWN_FLOWER_APP, make
from fedpfl.methods import methods

pytestmark = pytest.mark.xdist_group("flower")

# The app's client as `client_app`, and a strategy with settings and what it sends besides.
WHOLE = {
    "client_app.py": """\
from fedpfl.strategies import client_app
from own_heads.task import Net, load_sim_data

app = client_app(model=Net, data=lambda c: load_sim_data(c.node_config["partition-id"], 2))
""",
    "server_app.py": """\
from fedpfl.strategies import Scaffold
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from own_heads.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = Scaffold(model=Net, local_epochs=2, learning_rate=0.1)
    result = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=2)
    print("shared arrays:", ", ".join(result.arrays))
""",
}


class Bench(Flower):
    """A SuperLink with two SuperNodes, on loopback."""

    mode = ("--isolation", "subprocess")

    def __enter__(self) -> Bench:
        super().__enter__()
        self._nodes = []
        for client in range(2):
            command = [
                self.commands / "flower-supernode", "--insecure", "--superlink", self.address,
                "--node-config", f"partition-id={client} num-partitions=2",
                "--host", "127.0.0.1", "--port", str(free_port()),
            ]  # fmt: skip
            log = (self.folder / f"node-{client}.log").open("wb")
            node = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)
            self._nodes.append(node)
        return self

    def __exit__(self, *error: object) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait(SECONDS)
        super().__exit__()

    def output(self, app: Path) -> str:
        """Run an app to its good end, and return what it logs."""
        command = [self.commands / "flwr", "run", ".", "--stream"]
        done = subprocess.run(command, cwd=app, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.status() == "finished:completed", done.stdout
        return done.stdout


@pytest.mark.cluster
def test_an_app_in_flowers_shape_keeps_a_head_on_each_node(tmp_path):
    app = tmp_path / "own-heads"
    make(app, OWN_FLOWER_APP)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("num-server-rounds = 10", "num-server-rounds = 3"))
    with Bench() as bench:
        said = bench.output(app)
        scores = [float(number) for number in re.findall(r"Aggregated MetricRecord: \{'accuracy': ([\d.]+)\}", said)]
        assert len(scores) == 3
        assert scores[-1] > 0.8
        assert "shared arrays: fc1.weight, fc1.bias\n" in said
        # And the same data by an app of the project's, with a method that sends more than the shared arrays.
        for name, text in WHOLE.items():
            (app / "own_heads" / name).write_text(text)
        said = bench.output(app)
        assert "shared arrays: fc1.weight, fc1.bias, fc2.weight, fc2.bias\n" in said
        assert said.count("'personalised-accuracy'") >= 2


# In the suite stand copies of the app for each message: test_fedpfl_clients.py.
@pytest.mark.cluster
def test_every_method_in_flowers_simulation():
    names = list(methods())
    program = Path(__file__).with_name("simulated.py")
    done = subprocess.run([sys.executable, program, *names], capture_output=True, text=True, timeout=20 * SECONDS)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"method"')]
    assert [line["method"] for line in lines] == names, done.stdout[-5000:] + done.stderr[-5000:]
    for line in lines:
        assert 0 <= line.get("personalised-accuracy", -1) <= 1, line
