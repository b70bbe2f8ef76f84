"""The jobs that come with hpcdist, short, on a cluster."""

import json

_JOBS = {
    "lightning": ("--nodes", 2, "--set", "train.epochs=1"),
    "fsdp": ("--nodes", 2, "--set", "train.epochs=1"),
    "data_parallel": ("--set", "train.epochs=1"),
    "inference": ("--gpus", 2, "--set", "inference.batch_sizes=[1,8]"),
    "allreduce": ("--nodes", 2, "--set", "allreduce.sizes=[1024]"),
    "dataload": ("--set", "data.workers=[0,1]", "--set", "data.batches_to_check=2"),
}
_ALL = ("--set", "launch.device=cpu", "--set", "data.name=digits")
_WITHOUT_DATA = {"allreduce"}


def run_and_sum_up(user):
    """Submit all of them at once; what one summary says of each."""
    runs = [
        user.submit(job, *words, *_ALL[: 2 if job in _WITHOUT_DATA else 4])
        for job, words in _JOBS.items()
    ]
    for run in runs:
        user.done(run)
    summaries = json.loads(user("summary", *(run.id for run in runs), "--json").stdout)
    assert [one["job"] for one in summaries] == list(_JOBS)
    *trained, inference, all_reduce, loading = summaries
    assert all(one["samples_per_s"] for one in trained)
    assert {cell["batch_size"] for cell in inference["inference"]["cells"]} == {1, 8}
    assert [size["bytes"] for size in all_reduce["all_reduce"]["sizes"]] == [1024]
    assert {cell["setting"]["workers"] for cell in loading["loading"]["cells"]} == {0, 1}
    return summaries
