"""The nodes of a run that begins."""

import os

from hpcdist.monitor.progress import awaited_nodes
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning


def test_status_names_the_nodes_that_have_not_joined_in_any_life(tmp_path):
    run = Run.create(tmp_path, "job")

    def awaited(**written_s):
        """After these files were written, at these times."""
        for name, time_s in written_s.items():
            path = run.meeting_file if name == "meeting" else run.agent_file(int(name[-1]))
            path.touch()
            os.utime(path, (time_s, time_s))
        return awaited_nodes(run, num_nodes=4)

    assert awaited() is None  # node 0 itself is not there yet
    # Node 2 has begun, and not joined.
    assert awaited(meeting=100, node_0=101, node_2=99) == "the agents of nodes 1, 2 and 3 to join"
    assert awaited(node_1=102, node_2=102, node_3=102) is None
    run.write_beginning(run.claim_attempt(), Beginning(life=0))
    os.utime(run.attempts_folder / "00000" / "begin.json", (103, 103))
    assert awaited(meeting=200, node_0=201) == "the agents of nodes 1, 2 and 3 to join"
    assert awaited(node_3=202) == "the agents of nodes 1 and 2 to join"
