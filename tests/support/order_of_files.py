"""The order in which test files run, and which of them share a process: hooks of pytest, which
conftest.py imports. Files are dealt out to several processes; the last to begin must not be the
longest, and what mostly waits for a cluster leaves the CPUs to others meanwhile."""

import gc

import pytest

_ORDER = {
    "tests/conformance/test_pbs.py": "",
    "tests/agent": "agents",  # with what it shares, the longest of all
    "tests/slurm/test_requeue.py": "",
    "tests/bench": "jobs",
    "tests/conformance/test_slurm.py": "",
    "tests/cli/test_stop.py": "",
    "tests/slurm": "",
    "tests/training": "",
    "tests/lsf": "",
    "tests/cli": "",
    "tests/conformance": "",
    "tests/rank": "agents",
    "tests/summary/test_attribution.py": "agents",
    "tests/workloads": "jobs",
}
"""Files and folders, the longest first, waiting ones and busy ones in turns; all that have the same
name run in one process, as they share what takes seconds to start."""


def _place(file):
    """(place in the order, name of the process) of a file."""
    for place, (path, process) in enumerate(_ORDER.items()):
        if file.startswith(path):
            return place, process or file
    return len(_ORDER), file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As --dist=loadfile deals files out, but for those that share a process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByProcess(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return _place(super()._split_scope(nodeid))[1]

    return ByProcess(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0])[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: to look through all of it for garbage takes a quarter
    of the time of collecting, and time and again while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
