"""Forks a simulation's processes, ``python -m fedpfl.simulation_forks SOCKET``, instead of starting each by itself.

Flower starts a process for the server and Ray one for each actor, and all of them import torch and Flower, which takes
longer than everything else before a short run's first round. Here that happens once, while the SuperLink and Ray start.
Flower finds its command in its ``PATH``, and Ray is told of the other by :mod:`fedpfl.ray_head`.
"""

from __future__ import annotations

import os
import resource
import runpy
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import forks
from .errors import FedpflError
from .launch import ACTOR, script

SERVER = "flwr-simulation"
# What Ray gives the workers that it starts: files that may be open, and being the first to go when memory is short.
OPEN_FILES, OOM_SCORE = 65_536, 1000


def load_actor() -> Callable[[], Any]:
    """Import what an actor needs, but not Ray: that reads, for good, the environment in which it is imported."""
    import flwr.clientapp  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import torch  # noqa: F401

    return be_actor


def be_actor() -> None:
    """Be a Ray worker, given the arguments of Ray's ``setup_worker.py``: that sets an environment and executes."""
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers import setup_worker

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    own, arguments = setup_worker.parser.parse_known_args(sys.argv[1:])
    context = RuntimeEnvContext.deserialize(own.serialized_runtime_env_context or "{}")  # type: ignore[no-untyped-call]
    if context.command_prefix or context.py_executable != sys.executable:
        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
    update_envs(context.env_vars)
    # Two are Python's own, and in force here as well.
    program, *arguments = (argument for argument in arguments if argument not in ("-s", "-S"))
    # What Python does when it starts; this one has started before the environment was known.
    sys.path[:0] = [str(Path(program).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    """Fork until the end of the run."""
    ray = find_spec("ray")
    try:
        if ray is None or ray.origin is None:
            raise FedpflError("ray is not installed; install flwr[simulation] beside fedpfl")
        setup_worker = Path(ray.origin).parent / "_private" / "workers" / "setup_worker.py"
        server = forks.Command(SERVER, [script(SERVER)], partial(forks.entry_point, SERVER))
        actor = forks.Command(ACTOR, [sys.executable, str(setup_worker)], load_actor)
        forks.run(Path(sys.argv[1]), [server, actor])
    except FedpflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
