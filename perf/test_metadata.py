"""Ranks ask the file system few things: tried by `make perf`."""

import shutil
from collections import Counter
from pathlib import Path

import pytest


def test_a_rank_asks_the_file_system_few_things_and_other_agents_none_while_it_steps(monkeypatch):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import metadata

    trace, _ = metadata.measure(nodes=2, ranks=2, length_s=2)

    whose = metadata.owners(trace)
    rank, _, other, *_ = metadata.OWNERS
    before, after = Counter(), Counter()
    for one in trace.operations:
        if one.time_s < trace.over_s:
            counts = before if one.time_s < trace.began_s else after
            counts[whose.get(one.pid), one.kind] += 1
    of_ranks = {kind: count for (owner, kind), count in before.items() if owner == rank}
    assert of_ranks == {"create": 4 * 2, "fstat": 4 * 3}  # of its log and of its events
    assert [key for key in after if key[0] in {rank, other}] == []
