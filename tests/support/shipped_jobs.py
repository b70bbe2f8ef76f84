"""Jobs that come with hpcdist, short, on a cluster; ddp and allreduce are run by other tests."""

import json

from trainings import CPU

_DIGITS = ("--set", "data.name=digits")
_JOBS = {
    "lightning": ("--gpus", 2, "--set", "train.epochs=1", *_DIGITS),
    "fsdp": ("--gpus", 2, "--set", "train.epochs=1", *_DIGITS),
    "data_parallel": ("--set", "train.epochs=1", *_DIGITS),
    "inference": ("--gpus", 2, "--set", "inference.batch_sizes=[1,8]", *_DIGITS),
    "dataload": ("--set", "data.workers=[0,1]", "--set", "data.batches_to_check=2", *_DIGITS),
}


def run_and_sum_up(user):
    """Submit all of them at once; what one summary says of each."""
    runs = [user.submit(job, *words, *CPU) for job, words in _JOBS.items()]
    for run in runs:
        user.done(run)
    summaries = json.loads(user("summary", *(run.id for run in runs), "--json").stdout)
    assert [one["job"] for one in summaries] == list(_JOBS)
    *trained, inference, loading = summaries
    assert all(one["samples_per_s"] for one in trained)
    assert {cell["batch_size"] for cell in inference["inference"]["cells"]} == {1, 8}
    assert {cell["setting"]["workers"] for cell in loading["loading"]["cells"]} == {0, 1}
    return summaries
