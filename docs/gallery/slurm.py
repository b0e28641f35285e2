"""Many runs on a Slurm cluster.

Each method and seed is one job. The command waits for all jobs and prints a table, which is left out here. This needs
the extra `cluster`. There was no cluster for this page: the output is from stand-ins for Slurm's commands, which start
each job at once on the same machine.
"""

import shlex
import subprocess
from pathlib import Path

import fedpfl

command = """
fedpfl compare local fedavg fedper --seeds 2 -c 'dataset="digits" model="mlp" num-server-rounds=5'
    --executor slurm --slurm time=00:10:00 --slurm cpus-per-task=1 --output-dir grid --quiet
"""
subprocess.run(shlex.split(command), check=True, capture_output=True)
for script in sorted(Path("grid/jobs").glob("[0-9]*_submission.sh")):
    print(script.name, *(line for line in script.read_text().splitlines() if "job-name" in line or "time=" in line))
found = fedpfl.compare([fedpfl.load(folder) for folder in sorted(Path("grid/runs").iterdir())])
print(found.conclusion)
found.plot().save("slurm.svg")
