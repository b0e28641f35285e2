"""Many runs on a Slurm cluster.

Each method and seed is a job of its own; the command waits for all of them and prints the table. This needs the extra
`cluster`. There was no cluster here: the outputs are from stand-ins for Slurm's commands, which start a job at once, on
the same machine.
"""

import shlex
import subprocess
from pathlib import Path

import fedpfl

command = """
fedpfl compare fedavg fedper --seeds 2 -c 'dataset="digits" model="mlp" num-server-rounds=5'
    --executor slurm --slurm time=00:10:00 --slurm cpus-per-task=1 --output-dir grid --quiet
"""
subprocess.run(shlex.split(command), check=True)
for script in sorted(Path("grid/jobs").glob("*.sh")):
    print(script.name, *(line for line in script.read_text().splitlines() if "job-name" in line or "time" in line))
runs = [fedpfl.load(folder) for folder in sorted(Path("grid/runs").iterdir())]
fedpfl.compare(runs).plot().save("slurm.svg")
