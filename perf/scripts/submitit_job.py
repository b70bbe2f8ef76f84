"""What a user of submitit writes to submit a function: the least there is.

Usage: submitit_job.py [MODULE]

MODULE is imported first, as torch is by a script that holds the training it submits.
"""

import importlib
import sys

import submitit


def train() -> int:
    return 0


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    executor = submitit.AutoExecutor(folder="submitit")
    executor.update_parameters(
        name="script",
        timeout_min=10,
        nodes=1,
        tasks_per_node=1,
        cpus_per_task=1,
        slurm_partition="main",
    )
    print(executor.submit(train).job_id)


if __name__ == "__main__":
    main()
