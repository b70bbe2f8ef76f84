"""A job that counts until a gate is open: quick to start, and it can be interrupted anywhere."""

from cluster_user import COUNT, CPU, TWO, events, log

ELASTIC_COUNT = COUNT.replace("record.start(", "record.elastic()\nrecord.start(")
"""It goes on with fewer ranks, too."""


def count(user, *options):
    """Submit it with two ranks, and wait until both count."""
    run = user.submit(user.write("count.py", COUNT), *CPU, *TWO, *options)
    await_counting(user, run)
    return run


def await_counting(user, run, attempt=0, *, num_ranks=2):
    """Until its ranks have begun an attempt, and so have LSF's signals in their hands."""
    user.cluster.wait_for(
        lambda: all(len(events(run, "start", rank=rank)) > attempt for rank in range(num_ranks)), 90
    )


def end_counting(user, run, attempt=1, *, is_last=True):
    """Open the gate to it once it has begun this attempt, and see that it went on exactly where it
    stopped the last time, all ranks alike; `is_last`: and that no other attempt followed."""
    num_ranks = run.spec.outline.resources.nodes
    await_counting(user, run, attempt, num_ranks=num_ranks)
    user.write("gate", "")
    user.done(run)
    assert run.newest_attempt() == attempt or (not is_last and run.newest_attempt() > attempt)
    said = [_told(log(run, rank)) for rank in range(num_ranks)]
    assert all(one == said[0] for one in said)
    *_, stopped, counted = said[0]
    assert stopped.removeprefix("stopped ") == counted.removeprefix("counted from ")


def _told(text):
    return [line for line in text.splitlines() if line.startswith(("stopped", "counted"))]
