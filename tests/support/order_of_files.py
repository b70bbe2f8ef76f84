"""The order in which test files run: hooks of pytest, which conftest.py imports."""

import gc
import itertools

import pytest

_WAITING = ("tests/slurm", "tests/lsf")
"""What these test is mostly waited for; the CPUs are for others meanwhile."""
_LONGEST_FIRST = (
    "tests/agent/test_examples.py",  # and with it all of agents, which one process runs
    "tests/slurm/test_requeue.py",
    "tests/lsf/test_failures.py",
    "tests/cli/test_stop.py",
    "tests/lsf/test_requeue.py",
    "tests/slurm",
    "tests/perf",
    "tests/lsf",
    "tests/agent/test_lightning.py",
    "tests/training/test_lightning.py",
    "tests/bench",
    "tests/summary/test_attribution.py",
    "tests/cli",
    "tests/training",
    "tests/agent",
    "tests/data/images/test_loading.py",
)
"""Files are dealt out to several processes: the last to begin must not be the longest."""


_TOGETHER = {
    "tests/agent": "agents",
    "tests/rank": "agents",
    "tests/summary/test_attribution.py": "agents",
    "tests/bench": "jobs",
    "tests/workloads": "jobs",
}
"""Files and folders that share what takes seconds to start: one process runs all of a name."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As --dist=loadfile deals files out, but for those that go together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return next((name for path, name in _TOGETHER.items() if file.startswith(path)), file)

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: to look through all of it for garbage takes a quarter
    of the time of collecting, and time again and again while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    def place(file):
        found = (i for i, path in enumerate(_LONGEST_FIRST) if file.startswith(path))
        return next(found, len(_LONGEST_FIRST))

    by_file = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = sorted(by_file, key=place)
    waiting = [file for file in files if file.startswith(_WAITING)]
    others = [file for file in files if not file.startswith(_WAITING)]
    in_turns = [file for two in itertools.zip_longest(waiting, others) for file in two if file]
    items[:] = [item for file in in_turns for item in by_file[file]]
