"""The succession to a leader that is lost: members that see one run directory."""

import copy
from dataclasses import dataclass, field

import pytest

from hpcdist.agent.succession import LIMIT_S, Seen, Succession

EVERY_S = 0.2


@dataclass
class Directory:
    """The run's directory: the claims of attempts, and until when the old leader showed life."""

    shown_until_s: float = 0.0
    claims: dict = field(default_factory=dict)

    def seen(self, now_s):
        newest = max(self.claims, default=0)
        return Seen(newest, self.claims.get(newest), now_s < self.shown_until_s)


def play(directory, members, *, sure=(), others=(), until_s=2 * LIMIT_S):
    """Let the members of nodes 0 to 3 that are named look until each has led, joined or left;
    `others` is what others claim: time -> node. Return what became of each, and when."""
    others, ends, now_s = dict(others), {}, 0.0
    each = {
        node: Succession(node=node, lost=0, nodes=(0, 1, 2, 3), attempt=0, is_sure=node in sure)
        for node in members
    }
    while len(ends) < len(each) and now_s < until_s:
        for time_s in [one for one in others if one <= now_s]:
            directory.claims.setdefault(1, others.pop(time_s))
        for node, succession in each.items():
            if node in ends:
                continue
            step = succession.step(directory.seen(now_s), now_s)
            if step == "claim":
                is_first = directory.claims.setdefault(1, node) == node
                step = "lead" if is_first else "wait"
            if step != "wait":
                ends[node] = (step, now_s)
        now_s += EVERY_S
    return ends


def steps(ends):
    return {node: step for node, (step, _) in ends.items()}


ALL = (1, 2, 3)
OTHERS_JOIN = {1: "lead", 2: "join", 3: "join"}
ALL_LEAVE = dict.fromkeys(ALL, "leave")
CASES = {
    # what happens: (how the members look, what becomes of each, when the first is done)
    "the next node leads at once": (
        {"directory": Directory(20.0), "members": ALL, "sure": ALL},
        *(OTHERS_JOIN, 0.0),
    ),
    "the node after it leads where the next one is lost too": (
        {"directory": Directory(), "members": (2, 3), "sure": (2, 3)},
        *({2: "lead", 3: "join"}, 0.5),
    ),
    "a leader whose host says nothing is lost once it shows no life": (
        {"directory": Directory(20.0), "members": ALL},
        *(OTHERS_JOIN, 20.0),
    ),
    "a leader that lives and does nothing is left": (
        {"directory": Directory(999.0), "members": ALL},
        *(ALL_LEAVE, LIMIT_S),
    ),
    # It claims the next attempt once its own ranks are gone.
    "a leader that goes on without those who are cut off is left": (
        {"directory": Directory(999.0), "members": ALL, "others": {30.0: 0}},
        *(ALL_LEAVE, LIMIT_S),
    ),
    # As long as it may live, they cannot know that nobody goes on: nobody would end the job.
    "a leader that is lost as it has claimed the next attempt": (
        {"directory": Directory(20.0, {1: 0}), "members": ALL, "sure": ALL},
        *(ALL_LEAVE, 20.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_members_that_have_lost_their_leader(name):
    options, expected, first_s = CASES[name]
    ends = play(**copy.deepcopy(options))
    assert steps(ends) == expected
    assert first_s <= min(when for _, when in ends.values()) < first_s + 1


def test_of_two_halves_that_have_both_lost_the_leader_one_leads():
    """Both can write the run's directory, and cannot reach each other: who does not reach its
    leader leaves, for the attempt is not its own."""
    directory = Directory()
    ends = play(directory, (1, 3), sure=(1, 3))
    assert steps(ends) == {1: "lead", 3: "join"}
    again = Succession(node=3, lost=0, nodes=(0, 1, 2, 3), attempt=0, is_sure=True)
    assert again.step(directory.seen(LIMIT_S + 1), LIMIT_S + 1) == "leave"


def test_a_member_waits_for_a_claim_to_say_whose_it_is_and_leaves_what_has_gone_on_since():
    succession = Succession(node=2, lost=0, nodes=(0, 2), attempt=4, is_sure=True)
    assert succession.step(Seen(5, None, leader_lives=True), 1.0) == "wait"
    assert succession.step(Seen(5, 3, leader_lives=True), 1.0) == "join"
    assert succession.step(Seen(6, 3, leader_lives=True), 1.0) == "leave"
