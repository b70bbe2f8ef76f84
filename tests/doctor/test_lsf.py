"""What the doctor asks of LSF, and makes of its answers."""

from pathlib import Path

import pytest

from hpcdist.runs.run import Run
from hpcdist.schedulers.lsf.scheduler import scheduler

RECORDED = Path(__file__).parents[1] / "schedulers" / "lsf" / "recorded"


def recorded(name):
    return (RECORDED / name).read_text()


@pytest.fixture
def say(tmp_path, monkeypatch):
    """Make a command that says something; none of a real scheduler is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("LSB_DEFAULTQUEUE", raising=False)

    def make(name, out="", *, err="", code=0):
        (folder / f"{name}.out").write_text(out)
        (folder / f"{name}.err").write_text(err)
        script = f"#!/bin/bash\ncat $0.out; cat $0.err >&2; exit {code}\n"
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def site(say):
    say("bsub", err="IBM Spectrum LSF 10.1.0.12, Aug 04 2021\nCopyright IBM Corp.\n")
    say("bqueues", recorded("bqueues.txt"))
    say("lsid", recorded("lsid.txt"))
    for name in ("bjobs", "bkill", "brequeue"):
        say(name)
    return say


def test_a_site_that_answers_passes(site):
    commands, version, daemons = scheduler.examine()
    assert [one.state for one in (commands, version, daemons)] == ["pass"] * 3
    assert version.detail == "IBM Spectrum LSF 10.1.0.12, Aug 04 2021"
    assert daemons.detail == "cluster lsf10, master hosta.company.com, 2 of 3 queues are open"


def test_without_the_commands_nothing_more_is_examined(say):
    say("bsub")
    (commands,) = scheduler.examine()
    assert commands.state == "FAIL"
    assert commands.detail == "not found: bjobs, bkill, bqueues"


def test_a_site_without_brequeue_is_told_what_happens_instead(say):
    for name in ("bsub", "bjobs", "bkill", "bqueues"):
        say(name)
    commands = next(iter(scheduler.examine()))
    assert commands.state == "warn"
    assert "brequeue is not" in commands.detail


@pytest.mark.parametrize(
    ("err", "said"),
    [
        ("LSF is down. Please wait ...\n", "LSF does not answer"),
        ("something else\n", "bqueues lists no queue and says: something else"),
    ],
)
def test_daemons_that_do_not_answer_fail(site, err, said):
    site("bqueues", err=err, code=255)
    daemons = list(scheduler.examine())[-1]
    assert daemons.state == "FAIL"
    assert said in daemons.detail


def queue_of(name):
    parts = recorded("bqueues_long.txt").split("-" * 79)
    return next(part for part in parts if f"QUEUE: {name}\n" in part)


def test_a_queue_that_is_open_passes_with_what_it_allows(site):
    site("bqueues", queue_of("gpuv100"))
    finding = scheduler.try_script("#!/bin/bash\n#BSUB -q gpuv100\n")
    assert finding.state == "pass"
    assert "is open, and allows 1440 minutes and 64 slots" in finding.detail


def test_a_queue_that_starts_no_jobs_is_a_warning(site):
    site("bqueues", queue_of("gpuv100").replace("Open:Active", "Open:Inact_Adm"))
    finding = scheduler.try_script("#!/bin/bash\n#BSUB -q gpuv100\n")
    assert finding.state == "warn"


def test_where_lsf_does_not_tell_the_directives_are_not_judged(site):
    site("bqueues", err="what?\n", code=255)
    assert scheduler.try_script("#!/bin/bash\n#BSUB -q gpu\n").state == "skip"


def test_the_end_is_told_in_the_words_of_bjobs_also_where_they_are_wrapped(site, tmp_path):
    words = [
        "Exited with exit code 140",
        "Completed <exit>; TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    ]
    run = Run(tmp_path / "run")
    run.path.mkdir()
    assert scheduler.explain_end(run) == ""
    run.submission_file.write_text('{"job_id": "1234"}')
    site("bjobs", recorded("bjobs_long.txt"))
    assert scheduler.explain_end(run) == f"LSF says of job 1234: {'; '.join(words)}"
    site("bjobs", err="Job <1234> is not found\n", code=255)
    assert scheduler.explain_end(run) == ""
