"""Slurm's commands as far as submitit needs them, on this machine: a job starts at once, in the background.

:func:`install` puts this file under each command's name; ``FAKE_SLURM`` names the folder of the jobs. There ``ID.sh``
is a job's script, ``ID.pid`` its process and ``ID.code`` its exit status; while there is a file ``refuse``, sbatch
takes no job.
"""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

JOBS = Path(os.environ.get("FAKE_SLURM", ""))


def install(folder, path):
    """Put the commands and the folder of their jobs into a folder; return the variables for who calls them."""
    commands, jobs = folder / "bin", folder / "queue"
    commands.mkdir()
    jobs.mkdir()
    for command in COMMANDS:
        (commands / command.__name__).write_text(f"#!{sys.executable} -S\n{Path(__file__).read_text()}")
        (commands / command.__name__).chmod(0o755)
    return {"PATH": f"{commands}{os.pathsep}{path}", "FAKE_SLURM": str(jobs)}


def sbatch(script):
    if (JOBS / "refuse").exists():
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    job = str(1 + len(list(JOBS.glob("*.sh"))))
    (JOBS / f"{job}.sh").write_text(Path(script).read_text())
    child = subprocess.Popen(
        ["bash", "-c", f"bash {JOBS}/{job}.sh; echo $? > {JOBS}/{job}.code"],
        env={**os.environ, "SLURM_JOB_ID": job, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    (JOBS / f"{job}.pid").write_text(str(child.pid))
    print(f"Submitted batch job {job}")


def srun(*arguments):
    words = [word.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0") for word in arguments]
    out, err = (words[words.index(option) + 1] for option in ("--output", "--error"))
    command = words[words.index(err) + 1 :]
    with Path(out).open("ab") as stdout, Path(err).open("ab") as stderr:
        sys.exit(subprocess.run(command, stdout=stdout, stderr=stderr).returncode)


def sacct(*arguments):
    print("JobID|State|NodeList")
    for option, job in itertools.pairwise(arguments):
        if option == "-j" and (JOBS / f"{job}.sh").exists():
            code = JOBS / f"{job}.code"
            text = code.read_text() if code.exists() else ""  # the shell makes it before it has something to write
            state = "RUNNING" if not text else "COMPLETED" if text == "0\n" else "FAILED"
            print(f"{job}|{state}|here")


def scancel(job):
    os.killpg(int((JOBS / f"{job}.pid").read_text()), signal.SIGKILL)
    (JOBS / f"{job}.code").write_text("137\n")


COMMANDS = (sbatch, srun, sacct, scancel)

if __name__ == "__main__":
    next(command for command in COMMANDS if command.__name__ == Path(sys.argv[0]).name)(*sys.argv[1:])
