"""The store of a debug run, in the process of its one rank."""

from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, TCPStore

from hpcdist.agent.debug import serve_store
from hpcdist.machine.ports import listen


def test_a_debug_run_has_its_store_on_loopback_alone_and_only_once_it_is_asked_for():
    listener = listen("127.0.0.1", None)
    port = listener.getsockname()[1]
    serve_store(listener)
    limit = timedelta(seconds=30)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    store.set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(DistNetworkError):
        TCPStore("127.0.0.2", port, is_master=False, timeout=timedelta(seconds=0.1))
