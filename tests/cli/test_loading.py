"""A command imports its own file alone."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import fedpfl.cli
from fedpfl.cli import COMMANDS, GROUPS, app


def test_each_file_of_commands_is_known_with_its_commands():
    of = {}
    for command in app.registered_commands:
        of.setdefault(command.callback.__module__.rpartition(".")[2], []).append(command.name)
    of["experiment"] = ["experiment"]
    assert of == {name: list(names) for name, names in COMMANDS.items()}
    assert set().union(*GROUPS.values()) <= set().union(*COMMANDS.values())


def test_one_command_is_a_program_of_commands_too():
    code = "import sys; from fedpfl.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "new", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: -c new ")
    done = subprocess.run([sys.executable, "-c", code, "nwe"], capture_output=True, text=True)
    assert "did you mean new" in done.stderr and done.returncode == 2


def test_what_is_no_name_of_the_module_is_an_attribute_error():
    assert not hasattr(fedpfl.cli, "nothing")


def test_an_empty_home_is_the_user_s_own_and_not_the_root_folder():
    code = "import os; from fedpfl.cli import main\ntry: main()\nfinally: print(os.path.expanduser('~'))"
    arguments, environment = [sys.executable, "-c", code, "--help"], {**os.environ, "HOME": ""}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == pwd.getpwuid(os.getuid()).pw_dir
