"""The succession to a leader that is lost: members that see one run directory."""

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


def play(directory, members, *, sure=(), slow=None, others=(), until_s=2 * LIMIT_S):
    """Let the members of nodes 0 to 3 that are named look until each has led, joined or left;
    `slow` are their delays, `others` what others claim: time -> node. Return what became of each,
    and when."""
    others, slow, ends, now_s = dict(others), slow or {}, {}, 0.0
    each = {
        node: Succession(node=node, lost=0, nodes=(0, 1, 2, 3), attempt=0, is_sure=node in sure)
        for node in members
    }
    while len(ends) < len(each) and now_s < until_s:
        for time_s in [one for one in others if one <= now_s]:
            directory.claims.setdefault(1, others.pop(time_s))
        for node, succession in each.items():
            if node in ends or now_s < slow.get(node, 0.0):
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


def test_the_next_node_leads_at_once_and_the_others_join_it():
    ends = play(Directory(shown_until_s=20.0), (1, 2, 3), sure=(1, 2, 3))
    assert steps(ends) == {1: "lead", 2: "join", 3: "join"}
    assert max(when for _, when in ends.values()) < 1.0


def test_the_node_after_it_leads_where_the_next_one_is_lost_too():
    ends = play(Directory(), (2, 3), sure=(2, 3))
    assert steps(ends) == {2: "lead", 3: "join"}
    assert ends[2][1] < 1.0


def test_whoever_is_first_leads_where_the_next_one_is_slow():
    ends = play(Directory(), (1, 2, 3), sure=(1, 2, 3), slow={1: 5.0})
    assert steps(ends) == {1: "join", 2: "lead", 3: "join"}


def test_a_leader_whose_host_says_nothing_is_lost_once_it_shows_no_life():
    ends = play(Directory(shown_until_s=20.0), (1, 2, 3))
    assert steps(ends) == {1: "lead", 2: "join", 3: "join"}
    assert 20.0 <= ends[1][1] < 21.0


@pytest.mark.parametrize("after_s", [0.0, 1.0, 30.0, 80.0])
def test_members_that_are_cut_off_from_a_leader_that_goes_on_leave(after_s):
    """It shows life, and claims the next attempt once its own ranks are gone."""
    ends = play(Directory(shown_until_s=999.0), (2, 3), others={after_s: 0})
    assert steps(ends) == {2: "leave", 3: "leave"}


def test_members_leave_a_leader_that_lives_and_does_nothing():
    ends = play(Directory(shown_until_s=999.0), (1, 2, 3))
    assert steps(ends) == dict.fromkeys((1, 2, 3), "leave")
    assert LIMIT_S <= ends[1][1] < LIMIT_S + 1


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


@pytest.mark.parametrize("lives_s", [0.0, 20.0, 999.0])
def test_members_leave_a_leader_that_is_lost_as_it_has_claimed_the_next_attempt(lives_s):
    """As long as it may live, they cannot know that nobody goes on: nobody would end the job."""
    ends = play(Directory(lives_s, {1: 0}), (1, 2), sure=(1, 2))
    assert steps(ends) == {1: "leave", 2: "leave"}
    assert min(lives_s, LIMIT_S) <= ends[1][1] < min(lives_s, LIMIT_S) + 1
