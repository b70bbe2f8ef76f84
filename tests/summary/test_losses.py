"""Where the time of a group of runs goes: known answers, adding up, and who is named for it."""

import io

import pytest

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.figures.shares import SHARES as PARTS
from hpcdist.summary.report.text import make_console

ALONE = {"data_wait": 0.01, "forward_backward": 0.08, "optimizer": 0.01}
STEPS = 10
WINDOWS = 10
FAILED = Verdict(
    kind="signal", state="failed", message="rank 0 was killed", exit_code_of_run=1, attempt=0
)


@pytest.fixture
def add_run(make_run, events):
    """Add a run whose ranks take the given seconds per step and phase: the same in each window, or
    by what a function of the window's number says."""
    count = iter(range(100))

    def add(*ranks, nodes=1, begin_s=0.0, more=(), windows=range(WINDOWS), batch=4, **options):
        run = make_run(f"ddp-{next(count):02d}", nodes=nodes, gpus=len(ranks) // nodes, **options)
        for rank, phases in enumerate(ranks):
            start = events.start(rank, world_size=len(ranks), num_nodes=nodes, cpus=[rank])
            made = [
                window(events, phases(number) if callable(phases) else phases, number, batch)
                for number in windows
            ]
            after = list(more) if rank == 0 else []
            events.write(run, rank, [start, *made, *after, events.end()])
        return run

    return add


def window(events, phases, number, batch=4, end_s=0.0):
    step_s = sum(phases.values())
    return events.window(
        step=STEPS * (number + 1),
        times_s=[step_s] * STEPS,
        samples=batch * STEPS,
        phases_s={name: [time] * STEPS for name, time in phases.items() if name != "other"},
        time_s=end_s,
    )


def losses(*runs):
    """Of the sizes of the only group."""
    (group,) = summarize(runs, {}).groups
    return group.cells


def printed(*runs, **options):
    text = io.StringIO()
    print_summary(summarize(runs, {}), make_console(text), **options)
    return " ".join(text.getvalue().split())


def assert_lost(found, **wanted):
    assert sum(found.lost.values()) == pytest.approx(1 - found.overall)
    for part in PARTS:
        assert found.lost[part] == pytest.approx(wanted.get(part, 0.0), abs=1e-9), part


CASES = {
    "loader": ([ALONE | {"data_wait": 0.11}] * 2, {"data": 0.5}),
    "copies": ([ALONE | {"host_to_device": 0.1}] * 2, {"device": 0.5}),
    "network": ([ALONE | {"exposed_communication": 0.1}] * 2, {"communication": 0.5}),
    "slow rank": (
        [ALONE | {"exposed_communication": 0.1}, ALONE | {"forward_backward": 0.18}],
        {"stragglers": 0.5},
    ),
    "slow rank of four, and network": (
        [ALONE | {"exposed_communication": 0.3}] * 3
        + [ALONE | {"data_wait": 0.21, "exposed_communication": 0.1}],
        {"stragglers": 0.5, "communication": 0.25},
    ),
    "shared CPUs": ([ALONE | {"forward_backward": 0.18}] * 2, {"computing": 0.5}),
    "optimizer": ([ALONE | {"optimizer": 0.06, "other": 0.05}] * 2, {"fixed": 0.5}),
    "saving of rank 0, which others wait for": (
        [ALONE | {"checkpoint": 0.1}, ALONE | {"exposed_communication": 0.1}],
        {"checkpoints": 0.5},
    ),
    "saving, and another slow rank": (
        [
            ALONE | {"checkpoint": 0.1, "exposed_communication": 0.2},
            ALONE | {"exposed_communication": 0.3},
            ALONE | {"forward_backward": 0.28, "exposed_communication": 0.1},
        ],
        {"checkpoints": 0.25, "stragglers": 0.5},
    ),
    "nothing": ([ALONE] * 2, {}),
}


@pytest.mark.parametrize(("ranks", "lost"), CASES.values(), ids=CASES)
def test_what_a_size_loses_is_found_and_adds_up(add_run, ranks, lost):
    one, several = losses(add_run(ALONE), add_run(*ranks))
    assert_lost(one)
    assert_lost(several, **lost)
    assert several.largest == max(lost, key=lost.get, default=None)


def test_computing_that_nothing_tells_from_communication_is_called_both(add_run):
    fsdp = {"strategy": "fsdp"}
    two = add_run(*[ALONE] * 2, **fsdp)
    assert "is neither computing nor communication" in printed(two)
    text = printed(
        add_run(ALONE, **fsdp), add_run(*[ALONE | {"forward_backward": 0.18}] * 2, **fsdp)
    )
    assert "50 % slower computing and communication together" in text
    assert "slower comp." in text
    assert "comp. + comm.: computing and communication together, where nothing separates" in text
    watched = printed(add_run(*[ALONE | {"exposed_communication": 0.01}] * 2, **fsdp))
    assert "is not computing" in watched


def test_a_restart_costs_the_time_between_attempts_and_the_steps_done_again(make_run, events):
    # Attempt 0: 50 steps of 0.1 s, from 100 s to 105 s. Attempt 1: from 110 s on, from step 20 on.
    # Useful are 100 steps, 10 s; lost are 5 s between and 30 steps. Node 1's clock is 2 min ahead.
    run = make_run("ddp-restarted", nodes=2)
    for rank, ahead_s in ((0, 0.0), (1, 120.0)):
        start = events.start(rank, world_size=2, num_nodes=2)
        first = [window(events, ALONE, n, end_s=101.0 + n + ahead_s) for n in range(5)]
        second = [window(events, ALONE, n, end_s=109.0 + n + ahead_s) for n in range(2, 10)]
        resume = {"event": "resume", "step": 20}
        events.write(run, rank, [start, *first])
        events.write(run, rank, [start, resume, *second, events.end()], attempt=1)
    run.write_attempt_verdict(FAILED)
    (summary,) = summarize([run], {}).runs
    assert summary.lost_steps == 30
    assert summary.lost_time_s == pytest.approx(5 + 30 * 0.1)
    assert summary.cell.shares["restarts"] == pytest.approx(8 / 18)
    assert sum(summary.cell.shares.values()) == pytest.approx(1)
    assert "restarted 1 time, 30 steps done again, 8.0 s lost" in printed(run)
    assert "attempt 0: rank 0 was killed" in printed(run)


def test_what_was_lost_over_all_the_time_is_told_apart_from_the_efficiency_of_steps(add_run):
    saves = [{"event": "checkpoint", "save_time_s": 10.0}]
    runs = [add_run(ALONE), add_run(ALONE, ALONE, more=saves)]
    summary = summarize(runs, {})
    assert summary.runs[1].efficiency == pytest.approx(1)
    assert_lost(summary.groups[0].cells[1], checkpoints=0.5)


def test_ranks_that_take_turns_in_being_slow_are_stragglers_without_a_name(add_run):
    def slow_in(turn):
        return lambda number: (
            ALONE
            | ({"forward_backward": 0.18} if number % 2 == turn else {"exposed_communication": 0.1})
        )

    _, two = losses(add_run(ALONE), add_run(slow_in(0), slow_in(1)))
    # In one half of the time each waits 0.1 s, in the other it computes 0.1 s longer itself; the
    # first window is warm-up.
    assert two.lost["communication"] == pytest.approx(0, abs=1e-9)
    assert two.lost["stragglers"] > 0.25
    assert two.straggler is None
    assert "no single rank is clearly the slowest" in two.advice[0]


def test_steps_without_phases_are_not_blamed_on_anything(add_run):
    bare = {"other": 0.1}
    _, two = losses(add_run(bare), add_run({"other": 0.2}, {"other": 0.2}))
    assert_lost(two, undivided=0.5)
    (alone,) = losses(add_run(bare))
    assert (alone.overall, alone.largest) == (1, None)
    # Against a run with phases nothing finer can be said.
    _, mixed = losses(add_run(ALONE), add_run({"other": 0.2}, {"other": 0.2}))
    assert_lost(mixed, undivided=0.5 + 0.05, data=-0.05)


def test_a_single_size_is_divided_into_computing_and_what_could_be_won(add_run):
    (found,) = losses(add_run(ALONE | {"host_to_device": 0.1}))
    assert found.against == []
    assert found.overall == pytest.approx(0.4)
    assert found.lost["computing"] == 0
    assert found.shares["computing"] == pytest.approx(0.4)
    assert found.lost["device"] == pytest.approx(0.5)
    text = printed(add_run(ALONE | {"host_to_device": 0.1}))
    assert "1 x 1: of its time 60 % is not computing: 50 % moving batches to the device" in text


def test_a_single_rank_communicates_with_nobody(add_run):
    run = add_run(ALONE | {"exposed_communication": 0.1})
    (alone,) = losses(run)
    assert alone.shares["communication"] == 0
    assert alone.lost["fixed"] == pytest.approx(0.11 / 0.2)
    # What it has against larger sizes is what they have of the same kind.
    _, two = losses(run, add_run(*[ALONE | {"exposed_communication": 0.1}] * 2))
    assert_lost(two)
