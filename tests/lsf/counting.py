"""A job of two ranks that counts, which is quick to start and can be interrupted anywhere."""

from cluster_user import log
from trainings import COUNT, CPU, TWO


def count(user, steps=20, *options):
    """Submit it, and wait until both ranks count."""
    script = user.write("count.py", COUNT)
    run = user.submit(script, *CPU, *TWO, *options, "--", steps)
    await_counting(user, run)
    return run


def await_counting(user, run, attempt=0):
    """Until its ranks have begun an attempt, and so have LSF's signals in their hands."""
    files = [run.event_file(rank, attempt) for rank in range(2)]
    user.cluster.wait_for(lambda: all(one.exists() and "start" in one.read_text() for one in files))


def assert_counted_on(run):
    """Both ranks stopped once, at one step, saved it, and went on from there."""
    assert run.newest_attempt() == 1
    said, said_by_other = (
        [line for line in log(run, rank).splitlines() if "ed " in line] for rank in range(2)
    )
    assert said == said_by_other
    stopped, counted = said
    assert stopped.removeprefix("stopped ") == counted.removeprefix("counted from ")
