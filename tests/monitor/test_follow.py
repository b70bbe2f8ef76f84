"""Reading a run while it is written: lines, progress, states, and its end."""

import json
import os

import msgspec
import pytest
from rank_ends import rank_end

from hpcdist.base.errors import SchedulerError
from hpcdist.cli.main import main
from hpcdist.monitor import states
from hpcdist.monitor.follow import News, again_sentence, end_sentence, follow
from hpcdist.monitor.logs import LogTail, Screen
from hpcdist.monitor.states import SETUP_MARK, run_states, wait_until_gone
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning, Hang, Verdict
from hpcdist.schedulers.base import Condition

DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def make_run(tmp_path, *, nodes=1, gpus=1, **spec):
    run = Run.create(tmp_path, "ddp")
    job = {"name": "ddp", "resources": {"nodes": nodes, "gpus": gpus}}
    run.spec_file.write_text(json.dumps({"created_s": 100.0, "job": job, **spec}))
    run.submission_file.write_text('{"scheduler": "local", "process": null}')
    return run


def test_logs_of_restarted_ranks_are_found_as_they_appear(run):
    tail = LogTail(run, (0, 2, 700))
    for _ in range(2):
        run.claim_attempt()
    run.log_file(0).write_text("first\n\r 50%|")
    run.log_file(1).write_text("unwanted\n")
    assert list(tail.lines()) == [(0, "first")]
    run.log_file(0, attempt=1).write_text("second\n")
    run.log_file(2, attempt=1).write_text("third\n")
    assert sorted(tail.lines()) == [(0, " 50%|"), (0, "second"), (2, "third")]
    run.log_file(700).write_text("fourth\n")
    assert list(tail.lines()) == [(700, "fourth")]


def test_a_line_is_shown_with_its_newline_and_is_open_until_then(run):
    tail = LogTail(run, (0, 1))
    with run.log_file(0).open("wb", buffering=0) as file:
        file.write(b"begins\n\r 10%|#  |")
        assert list(tail.lines()) == [(0, "begins")]
        assert tail.open_lines() == [(0, " 10%|#  |")]
        file.write(b"\r 90%|## |\r100%|###|\n\r 4%|\r 5%|")
        assert list(tail.lines()) == [(0, "100%|###|")]
        assert list(tail.lines(finish=True)) == [(0, " 5%|")]
        assert tail.open_lines() == []


def test_a_log_that_is_written_all_the_time_is_read_up_to_where_it_was(run):
    """Whoever writes faster than it is read must not keep the reader from the other ranks."""
    tail = LogTail(run, (0, 1))
    with run.log_file(0).open("wb", buffering=0) as file:
        file.write(b"line\n" * 1000)
        num_lines = 0
        for _ in tail.lines():
            file.write(b"another\n")
            num_lines += 1
    assert num_lines == 1000


class Queue:
    """A scheduler that gives these answers, the last again and again; None: it is silent."""

    has_queue = True

    def __init__(self, *answers):
        self._answers = list(answers)

    def conditions(self, runs):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise SchedulerError("it does not answer", hint="wait")
        return {run.id: Condition(state=answer) for run in runs}


@pytest.mark.parametrize(
    ("answers", "is_free"), [(["running", None, "running", "done"], True), (["running"], False)]
)
def test_a_run_is_resumed_once_its_scheduler_says_that_its_job_is_gone(
    run, monkeypatch, answers, is_free
):
    monkeypatch.setattr(states, "_LOOK_S", 0.01)
    monkeypatch.setattr(states, "_FREE_LIMIT_S", 0.2)
    queue = Queue(*answers)
    monkeypatch.setattr(states, "load_scheduler", lambda _name: queue)
    assert wait_until_gone(run, with_job=True) is is_free


def test_a_run_without_submission_is_pending_for_a_moment_and_then_lost(tmp_path):
    fresh, old = (make_run(tmp_path, scheduler="local") for _ in range(2))
    for run in (fresh, old):
        run.submission_file.unlink()
    os.utime(old.path, (100.0, 100.0))
    assert run_states([fresh, old]) == {fresh.id: "pending", old.id: "lost"}


def test_a_scheduler_that_cannot_be_asked_is_told_and_others_are_still_asked(tmp_path):
    here, elsewhere = make_run(tmp_path), make_run(tmp_path)
    here.write_verdict(DONE)
    elsewhere.submission_file.write_text('{"scheduler": "sge"}')
    told = []
    found = run_states([here, elsewhere], warn=told.append)
    assert found == {here.id: "done", elsewhere.id: "unknown"}
    assert len(told) == 1
    assert "sge" in told[0]


def test_a_run_whose_processes_are_gone_is_lost_and_shows_what_its_agents_said(run, capsys):
    logs = (run.agent_log_file(0), run.submitit_folder / "controller.log")
    for file in logs:
        file.write_text(f"last words of {file.name}\n")
    assert run_states([run]) == {run.id: "lost"}
    verdict = follow(run, Screen())
    assert (verdict.state, verdict.kind, verdict.exit_code_of_run) == ("lost", "agent_lost", 1)
    assert run.read_verdict() is None
    shown = capsys.readouterr().err
    assert all(f"last words of {file.name}" in shown for file in logs)
    assert end_sentence(run, verdict).startswith(f"run {run.id} lost: ")


@pytest.mark.parametrize(
    ("verdict", "who"),
    [
        ({"kind": "time_limit"}, "starting again when the scheduler restarts the job"),
        ({"kind": "cancelled", "resumed": True}, "hpcdist resume has started it again"),
        ({"kind": "exit"}, "starting again (1 of 10)"),
        ({"kind": "agent_lost"}, "starting again when the scheduler restarts the job"),
    ],
)
def test_an_attempt_says_who_starts_the_next_one(verdict, who):
    verdict = Verdict(state="failed", message="it ended", exit_code_of_run=1, **verdict)
    said = again_sentence(verdict, most_restarts=10)
    assert said == f"attempt 0 failed: it ended; {who}"


def test_the_last_sentence_has_the_time_by_the_clock_of_the_files_and_not_of_node_0(run):
    verdict = msgspec.structs.replace(DONE, time_s=1300.0)
    run.write_verdict(verdict)
    os.utime(run.spec_file, (100.0, 100.0))
    os.utime(run.verdict_file, (112.34, 112.34))
    assert end_sentence(run, verdict) == f"run {run.id}: done in 12.3 s"


def test_the_nodes_of_each_life_are_said_once_and_its_wait_and_failing_setup(run):
    run.submission_file.write_text('{"scheduler": "slurm", "job_id": "7"}')
    news, said = News(run), []
    running = Condition(state="running")
    waits = Condition(state="pending", reason="it was requeued")
    for life, host in enumerate(("n1", "n2")):
        run.write_beginning(run.claim_attempt(), Beginning(life=life))
        seen = {"node": 0, "host": host, "master_addr": "10.0.0.1"}
        run.agent_file(0).write_text(json.dumps(seen))
        for condition in (running, running, waits, waits):
            said += news.new(condition)
        (run.submitit_folder / "7_0_log.out").write_text(f"{SETUP_MARK}ml cuda (exit code 1)\n")
    assert [line.partition(";")[0] for line in said] == [
        "started on node 0: n1",
        "pending: it was requeued",
        "started on node 0: n2",
        "a line of the profile's setup failed: ml cuda (exit code 1)",
        "pending: it was requeued",
    ]


def test_a_hang_is_said_once_and_so_is_its_end(run, monkeypatch):
    monkeypatch.setattr("hpcdist.monitor.follow._LOOK_FOR_HANG_S", 0.0)
    hang = Hang(attempt=run.claim_attempt(), message="rank 1 seems to hang", time_s=1.0)
    news, said = News(run), []
    for recovered_s in (None, None, 9.0, 9.0):
        run.write_hang(msgspec.structs.replace(hang, recovered_s=recovered_s))
        said += news.new(Condition(state="running"))
    assert said == [hang.message, "a rank works again: the run does not hang"]


def test_logs_of_a_large_run_are_those_of_rank_0_and_of_the_one_that_failed_first(tmp_path, capsys):
    run = make_run(tmp_path, nodes=1024, gpus=8)
    for rank in (0, 7, 4321):
        run.log_file(rank).write_text(f"hello from {rank}\n")
    failed = msgspec.structs.replace(DONE, kind="exit", state="failed", first=rank_end(4321))
    run.write_verdict(failed)
    assert main(["logs", str(run.path)]) == 0
    out, err = capsys.readouterr()
    assert out == "[rank 0] hello from 0\n[rank 4321] hello from 4321\n"
    assert "of ranks 0 to 8,191, this is the log of rank 0, and of rank 4321, which failed" in err
    assert main(["logs", str(run.path), "--rank", "7"]) == 0
    assert capsys.readouterr().out == "hello from 7\n"
