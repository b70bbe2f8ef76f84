"""Reading a run while it is written: lines, progress, states, and its end."""

import json
import os

import msgspec
import pytest
from click.testing import CliRunner
from rank_ends import rank_end

from hpcdist.base import files
from hpcdist.cli.main import hpcdist
from hpcdist.machine.process import identify
from hpcdist.monitor.follow import News, again_sentence, end_sentence, follow
from hpcdist.monitor.logs import LogTail, Screen, whole_log
from hpcdist.monitor.states import SETUP_MARK, EndWatch, run_states
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


# Lines.


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


def test_a_whole_log_is_read_as_a_terminal_shows_it(run):
    run.log_file(0).write_bytes(b"begins\r\n" + b"\r 10%|" * 50_000 + b"\r100%|\nunfinished")
    assert list(whole_log(run.log_file(0))) == ["begins", "100%|", "unfinished"]
    assert list(whole_log(run.log_file(7))) == []


# States and ends.


def test_a_run_whose_processes_are_gone_is_lost(run):
    assert run_states([run]) == {run.id: "lost"}
    (verdict,) = EndWatch([run]).wait(interval_s=0.05).values()
    assert (verdict.state, verdict.kind, verdict.exit_code_of_run) == ("lost", "agent_lost", 1)
    assert run.read_verdict() is None


def test_a_run_without_submission_is_pending_for_a_moment_and_then_lost(tmp_path):
    fresh, old = (make_run(tmp_path, scheduler="local") for _ in range(2))
    for run in (fresh, old):
        run.submission_file.unlink()
    os.utime(old.path, (100.0, 100.0))
    assert run_states([fresh, old]) == {fresh.id: "pending", old.id: "lost"}


@pytest.mark.parametrize("content", ["", "{", '{"scheduler": 5}'])
def test_a_run_with_a_damaged_submission_is_lost_unless_an_agent_lives(tmp_path, content):
    lost, living = make_run(tmp_path), make_run(tmp_path, scheduler="local")
    for run in (lost, living):
        run.submission_file.write_text(content)
    process = msgspec.to_builtins(identify(os.getpid()))
    files.write_json(living.agent_file(0), {"process": process})
    assert run_states([lost, living]) == {lost.id: "lost", living.id: "running"}


def test_a_scheduler_that_cannot_be_asked_is_told_and_others_are_still_asked(tmp_path):
    here, elsewhere = make_run(tmp_path), make_run(tmp_path)
    here.write_verdict(DONE)
    elsewhere.submission_file.write_text('{"scheduler": "sge"}')
    told = []
    states = run_states([here, elsewhere], warn=told.append)
    assert states == {here.id: "done", elsewhere.id: "unknown"}
    assert len(told) == 1
    assert "sge" in told[0]


def test_following_a_lost_run_shows_what_its_agents_said(run, capsys):
    own, controller = run.submitit_folder / "1_0_log.err", run.submitit_folder / "controller.log"
    for file in (run.agent_log_file(0), own, controller):
        file.write_text(f"last words of {file.name}\n")
    verdict = follow(run, Screen())
    shown = capsys.readouterr().err
    for file in (run.agent_log_file(0), own, controller):
        assert f"last words of {file.name}" in shown
    assert end_sentence(run, verdict).startswith(f"run {run.id} lost: ")


@pytest.mark.parametrize(
    ("verdict", "who"),
    [
        ({"kind": "time_limit"}, "starting again when the scheduler restarts the job"),
        ({"kind": "time_limit", "resumed": True}, "hpcdist resume has started it again"),
        ({"kind": "cancelled", "resumed": True}, "hpcdist resume has started it again"),
        ({"kind": "exit"}, "starting again (1 of 10)"),
        ({"kind": "agent_lost"}, "starting again when the scheduler restarts the job"),
    ],
)
def test_an_attempt_says_who_starts_the_next_one(verdict, who):
    verdict = Verdict(state="failed", message="it ended", exit_code_of_run=1, **verdict)
    said = again_sentence(verdict, most_restarts=10)
    assert said == f"attempt 0 failed: it ended; {who}"


def test_the_last_sentence_has_the_time_from_submission_by_the_clock_of_the_files(run):
    """The clock of node 0, which the verdict has, may be 20 minutes off."""
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


# Runs on thousands of ranks.


@pytest.fixture
def large_run(tmp_path):
    """A failed run on 1,024 nodes of 8, whose logs and agents' files are there."""
    run = make_run(tmp_path, nodes=1024, gpus=8)
    run.claim_attempt()
    for rank in (0, 7, 4321):
        run.log_file(rank).write_text(f"hello from {rank}\n")
    for node in range(1024):
        seen = {"node": node, "host": f"host{node}", "master_addr": "10.0.0.1"}
        run.agent_file(node).write_text(json.dumps(seen))
    return run


def hpcdist_output(*args):
    result = CliRunner().invoke(hpcdist, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout, result.stderr


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that were opened to be read."""
    names = []
    opens = files.open_regular

    def open_regular(path, **options):
        names.append(os.path.basename(path))
        return opens(path, **options)

    monkeypatch.setattr("hpcdist.base.files.open_regular", open_regular)
    monkeypatch.setattr("hpcdist.monitor.logs.open_regular", open_regular)
    return names


def test_logs_of_a_large_run_are_those_of_rank_0_and_of_the_one_that_failed_first(
    large_run, opened
):
    failed = msgspec.structs.replace(DONE, kind="exit", state="failed", first=rank_end(4321))
    large_run.write_verdict(failed)
    place = ("--runs", large_run.path.parent)
    out, err = hpcdist_output("logs", "last", *place)
    assert out == "[rank 0] hello from 0\n[rank 4321] hello from 4321\n"
    assert "of ranks 0 to 8,191, this is the log of rank 0, and of rank 4321, which failed" in err
    assert [n for n in opened if n.endswith(".log")] == ["rank-00000.log", "rank-04321.log"]
    assert hpcdist_output("logs", "last", "--rank", 7, *place)[0] == "hello from 7\n"
    out, err = hpcdist_output("logs", "last", "--rank", "0-8191", *place)
    assert out.count("hello from") == 3
    assert not err


def test_status_of_a_large_run_opens_the_files_of_the_nodes_that_it_names(large_run, opened):
    large_run.write_verdict(DONE)
    out, _ = hpcdist_output("status", "last", "--runs", large_run.path.parent)
    assert "node 7: host7" in out
    assert "and 1,016 more" in out
    assert "rendezvous MASTER_ADDR 10.0.0.1" in out
    assert len([name for name in opened if name.startswith("agent-")]) == 8
