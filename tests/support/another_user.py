"""Another account, played by a forked child: it may do what any user of a shared machine may."""

import os
import shutil
import tempfile
import traceback
from pathlib import Path

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_nobody(act, *arguments):
    """Call a function as another user, in a child of this process; it must not raise."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act(*arguments)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as the tests
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "the other user could not do it"


@pytest.fixture
def reachable(monkeypatch):
    """A folder that others can come to, which pytest's own are not; it is the working directory."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdist-shared-", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    yield folder
    shutil.rmtree(folder)
