"""A run directory that is damaged, or that somebody else prepared: it is one row that says so, and
every other run is there as ever."""

import json
import os
import re
import shutil

import pytest
from rank_ends import rank_end

from hpcdist.base import files
from hpcdist.cli.main import main
from hpcdist.job.spec import Resources, TrainJob, job_to_dict
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

DEEP = '{"created_s": 1, "job": ' + "[" * 5_000 + "]" * 5_000 + "}"
OF_ALL = (
    *(["runs"], ["runs", "--json"], ["status"], ["watch", "--once"], ["summary"], ["gc"]),
    *(["summary", "--json"], ["summary", "--csv", "-"]),
    ["summary", "--html", "page.html", "--markdown", "page.md"],
)
OF_ONE = (
    *(["status", "evil"], ["logs", "evil"], ["logs", "evil", "--json"]),
    *(["cancel", "evil"], ["logs", "evil", "--follow"]),
)


def write_run(folder, name):
    run = Run(folder / name)
    folder.mkdir(exist_ok=True)
    run.make()
    job = TrainJob(name="ddp", resources=Resources(nodes=1, gpus=1))
    files.write_json(run.spec_file, {"created_s": 1.7e9, "job": job_to_dict(job)})
    files.write_json(run.submission_file, {"scheduler": "local"})
    (run.attempts_folder / "00000").mkdir()
    run.event_file(0).write_text('{"event": "start", "time_s": 1.0, "world_size": 1}\n')
    run.log_file(0).write_text("hello\n")
    (run.checkpoints_folder / "step-1.pt").write_bytes(b"x")
    run.write_verdict(Verdict(kind="done", state="done", message="well", exit_code_of_run=0))
    return run


def replace(path, content=""):
    path.unlink(missing_ok=True)
    path.write_text(content)


def change(path, **fields):
    replace(path, json.dumps(json.loads(path.read_text()) | fields))


def text(name, content):
    """A damage: another text in the place of a file of the run."""
    return lambda run: replace(getattr(run, name), content)


def every(damage):
    """A damage of each file of a kind."""

    def hurt(run):
        files_of_run = (run.spec_file, run.submission_file, run.verdict_file)
        for path in (*files_of_run, run.event_file(0), run.log_file(0)):
            path.unlink()
            damage(path)

    return hurt


DAMAGES = {
    "deep spec": text("spec_file", DEEP),
    "surrogates in the verdict": text(
        "verdict_file",
        r'{"kind": "exit", "state": "failed", "message": "\ud801", "exit_code_of_run": 1}',
    ),
    "no folders": lambda run: [
        shutil.rmtree(each.path) for each in os.scandir(run.path) if each.is_dir()
    ],
    "pipes": every(os.mkfifo),
    "sparse files": every(lambda path: (path.touch(), os.truncate(path, 260_000_000))),
    "a sweep elsewhere": lambda run: change(run.spec_file, sweep={"id": "../x", "index": 0}),
    "a log elsewhere": lambda run: change(run.verdict_file, kind="exit", log="/etc/passwd"),
    "a time that no clock shows": lambda run: change(run.verdict_file, time_s=float("-inf")),
    "10^9 nodes": text(
        "spec_file",
        '{"created_s": 1e400, "job": {"name": "x", "workload": "train",'
        ' "resources": {"nodes": 1000000000, "gpus": 1000000000}}}',
    ),
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    write_run(tmp_path / "runs", "fine-20260101-000000-aaaa")
    return tmp_path / "runs"


def works(verb, capsys, codes=(0,)):
    """Call a verb, which ends with one of these codes and no traceback; returns what it prints."""
    code = main(verb)
    out, err = capsys.readouterr()
    assert code in codes, (verb, err)
    assert "Traceback" not in err, verb
    return out


@pytest.mark.timeout(120)
def test_damaged_runs_break_no_verb_for_themselves_and_the_others(runs, capsys):
    hurt = [f"hurt-20260101-0000{number:02d}-bbbb" for number in range(len(DAMAGES))]
    for name, damage in zip(hurt, DAMAGES.values(), strict=True):
        damage(write_run(runs, name))
    for verb in OF_ALL:
        out = works(verb, capsys)
        assert verb[0] != "runs" or "fine-20260101-000000-aaaa" in out, verb
    for name in hurt:
        for verb in (["status", name], ["logs", name], ["logs", name, "--json"]):
            works(verb, capsys, (0, 2, 3))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("deep spec", "spec.json cannot be read: it is nested more than 64 levels deep"),
        ("surrogates in the verdict", "verdict.json cannot be read: it is not UTF-8 text"),
        ("pipes", "spec.json cannot be read: it is not a regular file"),
    ],
)
def test_a_run_that_cannot_be_read_is_a_row_that_says_so(runs, capsys, damage, why):
    hurt = write_run(runs, "hurt-20260101-000001-bbbb")
    DAMAGES[damage](hurt)
    assert main(["runs"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hurt")]
    assert why in row
    assert main(["status", "hurt"]) == 0
    assert f"  damaged    {why}" in capsys.readouterr().out
    if "verdict" in damage:
        assert main(["explain", hurt.id]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"the run's {why}" in said
        assert "agent" not in said


EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;t\x1b\\\x1b[2J\x9b2J\x9d0;t\x9c\x1bPq\x1b\\\r\x08\x7f\x85\x1b"
ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write_evil_run(runs, *, has_ended):
    run = write_run(runs, f"evil{EVIL}-20260101-000001-bbbb")
    evil = {"name": EVIL, "workload": EVIL, "description": EVIL}
    job = json.loads(run.spec_file.read_text())["job"] | evil | {"strategy": EVIL}
    spec = {"created_s": 1.7e9, "job": job, "host": EVIL, "user": EVIL, "versions": {"torch": EVIL}}
    if not has_ended:
        spec["sweep"] = {"id": EVIL, "index": 0, "label": EVIL, "variant": EVIL, "comparison": EVIL}
    files.write_json(run.spec_file, spec)
    files.write_json(run.submission_file, {"scheduler": "local", "job_id": EVIL, "job_name": EVIL})
    agent = {"node": 0, "host": EVIL, "address": EVIL, "master_addr": EVIL, "interface": EVIL}
    files.write_json(run.agent_file(0), agent)
    ended = Verdict(
        kind="agent_lost",
        state="failed",
        message=EVIL,
        exit_code_of_run=1,
        first=rank_end(0, host=EVIL, exception=EVIL, traceback=EVIL),
        remark=EVIL,
        victims=[1],
    )
    run.write_attempt_verdict(ended)
    run.verdict_file.unlink()
    if has_ended:
        run.write_verdict(ended)
    events = [
        {"event": "start", "schema": 2, "rank": 0, "world_size": 1, "host": EVIL, "device": EVIL},
        {"event": "note", "text": EVIL, "message": EVIL},
        {"event": EVIL},
        {"event": "end", "status": EVIL, "exception": EVIL},
    ]
    lines = [json.dumps({"time_s": 1.0} | event) + "\n" for event in events]
    run.event_file(0).write_text("".join(lines))
    (run.events_folder / f"x{EVIL}").touch()
    run.log_file(0).write_text(f"hello {EVIL}\n")
    (run.submitit_folder / f"x{EVIL}.log").write_text(EVIL)
    return run


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "goes on"])
def test_no_text_of_a_run_acts_on_the_terminal(runs, capsys, has_ended):
    run = write_evil_run(runs, has_ended=has_ended)
    assert main(["logs", "evil", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told == {"rank": 0, "attempt": 0, "path": str(run.log_file(0))}
    for verb in (*OF_ALL, *OF_ONE):
        main(verb)
        out, err = capsys.readouterr()
        assert not ACTING.search(out + err), (verb, out, err)
