"""Which nodes the next submission leaves out, by the lines of a ledger."""

import pytest

from hpcdist.runs import nodes
from hpcdist.runs.nodes import NodeEvent
from hpcdist.runs.verdict import Verdict

NOW = 1e9
DAY = 86400


def event(host, run="", kind="agent_lost", days=1.0):
    return NodeEvent(time_s=NOW - days * DAY, host=host, kind=kind, run=run)


@pytest.mark.parametrize(
    ("events", "left_out"),
    [
        pytest.param([event("a", "one")], [], id="once"),
        pytest.param([event("a", "one"), event("a", "one")], [], id="twice in one run"),
        pytest.param([event("a", "one"), event("a", "two")], ["a"], id="in two runs"),
        pytest.param([event("a", "one", days=8), event("a", "two")], [], id="too long ago"),
        pytest.param(
            [event("a", "one", "slow"), event("a", "two", "gpu")], ["a"], id="of any kind"
        ),
        pytest.param([event("a", kind="pin", days=99)], ["a"], id="pinned"),
        pytest.param(
            [event("a", "one"), event("a", "two"), event("a", kind="forget")], [], id="forgotten"
        ),
    ],
)
def test_two_runs_within_a_week_count_against_a_node(events, left_out):
    assert list(nodes.suspects(events, NOW)) == left_out


@pytest.mark.parametrize(
    ("num_hosts", "left_out"),
    [(10, ["n3", "n9"]), (60, ["n1", "n2", "n3", "n9"]), (None, ["n3", "n9"]), (5, ["n3"])],
)
def test_few_of_a_partition_are_left_out_those_first_that_failed_last(num_hosts, left_out):
    events = [event(f"n{i}", run, days=4 - i) for i in range(4) for run in ("one", "two")]
    found = nodes.suspects([*events, event("n9", kind="pin", days=30)], NOW)
    hosts = num_hosts and [f"n{i}" for i in range(1, num_hosts + 1)]
    assert sorted(nodes.to_leave_out(found, hosts)) == left_out


def test_lines_that_others_wrote_are_read_with_care(tmp_path):
    nodes.note("agent_lost", "n1", "one")
    nodes.note("agent_lost", "bad name; rm", "one")  # it would stand in a script
    foreign = tmp_path / "group.jsonl"
    foreign.write_text(
        '{"time_s":1,"host":"n2","kind":"slow"}\nno JSON\n'
        '{"time_s":1,"host":"$(x)","kind":"slow"}\n'
        '{"time_s":2,"host":"n1","kind":"pin"}\n{"time_s":9e11,"host":"n1","kind":"slow"}\n'
        '{"time_s":9e10,"host":"n1","kind":"forget"}\n'
    )
    found = nodes.read([nodes.ledger_file(), foreign, tmp_path / "missing"])
    assert [one.host for one in found] == ["n2", "n1"]
    assert nodes.ledger_file().stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("kind", "fields", "noted"),
    [
        ("agent_lost", {}, [("n1", "agent_lost")]),
        ("launch", {"try_elsewhere": True}, [("n1", "launch")]),
        *((kind, {}, []) for kind in ("launch", "exception", "out_of_memory", "hang", "cancelled")),
    ],
)
def test_only_a_node_is_blamed_and_no_program_or_victim(kind, fields, noted):
    nodes.note_verdict("one", Verdict(kind=kind, message="x", host="n1", node=1, **fields))
    found = nodes.read([nodes.ledger_file()])
    assert [(event.host, event.kind) for event in found] == noted
