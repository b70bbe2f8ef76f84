"""The store of a run, in a process of its own."""

import os
import signal
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, TCPStore

from hpcdist.agent.forkserver import fork_store
from hpcdist.machine.ports import listen


def test_a_store_that_is_known_by_loopback_listens_there_alone():
    listener = listen("127.0.0.1", None)
    port = listener.getsockname()[1]
    pid = fork_store(listener, "127.0.0.1")
    try:
        limit = timedelta(seconds=30)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        assert store.add("key", 1) == 1
        with pytest.raises(DistNetworkError):
            TCPStore("127.0.0.2", port, is_master=False, timeout=timedelta(seconds=0.1))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
