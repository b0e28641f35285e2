"""Many runs on a Slurm cluster.

Each job makes the same comparison in a folder that all machines see: it takes a run that no other job has, until all
are finished. The last call finds them there. This needs the extra `cluster`. There was no cluster for this page: where
`srun` is missing, submitit starts the jobs on the same machine.
"""

import submitit

import fedpfl


def work() -> fedpfl.Comparison:
    return fedpfl.compare(
        ["local", "fedavg", "fedper"], seeds=2, output_dir="grid", workers=1, quiet=True,
        dataset="digits", model="mlp", num_server_rounds=5,
    )  # fmt: skip


executor = submitit.AutoExecutor("jobs")
executor.update_parameters(timeout_min=10, cpus_per_task=1)
jobs = [executor.submit(work) for _ in range(3)]
for job in jobs:
    job.wait()
comparison = work()
print(comparison.conclusion)
comparison.plot().save("slurm.svg")
