"""The next start of a run that lost a host: without it, or later."""

import pytest

from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf.elsewhere import (
    elsewhere_sentence,
    has_others,
    lost_hosts,
    pause_s,
    without_hosts,
)
from hpcdist.schedulers.lsf.site import Host

HOUR = 3600.0


def loss(host, time_s, kind="launch"):
    return Verdict(
        kind=kind, message="lost", host=host, time_s=time_s, try_elsewhere=kind == "launch", node=1
    )


def test_hosts_that_were_lost_within_the_hour_are_left_out():
    ends = [
        loss("a", 0.0 + 1),
        loss("b", HOUR, "agent_lost"),
        loss("c", HOUR + 5),
        Verdict(kind="exit", message="a rank failed", host="d", time_s=HOUR),
        Verdict(kind="agent_lost", message="no host is known", time_s=HOUR),
    ]
    assert lost_hosts(ends, now_s=HOUR + 10) == {"b": HOUR, "c": HOUR + 5}
    assert "without b, lost at " in elsewhere_sentence({"b": HOUR})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            '#BSUB -R "span[ptile=2] rusage[mem=5GB]"',
            "#BSUB -R \"select[hname!=n2 && hname!='n-3'] span[ptile=2] rusage[mem=5GB]\"",
        ),
        (
            '#BSUB -R "select[gpu32gb || big] span[ptile=2]"',
            "#BSUB -R \"select[(gpu32gb || big) && (hname!=n2 && hname!='n-3')] span[ptile=2]\"",
        ),
        ("#BSUB -n 2", "#BSUB -R \"select[hname!=n2 && hname!='n-3']\"\n#BSUB -n 2"),
    ],
    ids=["merged", "with-its-own-select", "without-a-requirement"],
)
def test_a_request_leaves_hosts_out_in_its_one_requirement(line, expected):
    script = "#!/bin/bash\n{}\n#BSUB -W 01:00\ntrue\n"
    assert without_hosts(script.format(line), ["n2", "n-3"]) == script.format(expected)


def test_elsewhere_is_where_enough_hosts_of_the_size_are_up():
    hosts = [
        Host(name="n1", status="ok", slots=4),
        Host(name="n2", status="ok", slots=4),
        Host(name="n3", status="closed_Full", slots=4),
        Host(name="n4", status="unavail", slots=4),
        Host(name="n5", status="ok", slots=1),
    ]
    assert has_others(hosts, ["n2"], nodes=2, slots=4)
    assert not has_others(hosts, ["n2"], nodes=3, slots=4)
    assert has_others([], ["n2"], nodes=3, slots=4)  # bsub will tell


def test_the_same_hosts_are_tried_later_and_ever_later():
    ended = Verdict(kind="exit", message="a rank failed", host="d", time_s=HOUR)
    assert pause_s({0: ended, 1: loss("b", 1.0)}) == 15.0
    assert pause_s({0: loss("b", 1.0), 1: ended, 2: loss("b", 1.0), 3: loss("b", 1.0)}) == 30.0
    assert pause_s(dict.fromkeys(range(9), loss("b", 1.0))) == 300.0
