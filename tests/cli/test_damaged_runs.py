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
SURROGATE = r'{"created_s": 1, "job": {"name": "\ud800", "\ud801": 1}, "\ud802": "\ud803"}'
STEPS = (
    '{"event": "steps", "time_s": 3.0, "step": %s, "steps": %s, "samples": %s, "wall_s": 1.0,'
    ' "epoch": %s, "loss": %s,'
    ' "step_time_s": {"sum": 1.0, "sumsq": 0.1, "min": 0.1, "max": 0.1}, "phases_s": {}}\n'
)
IMPOSSIBLE = (
    '{"event": "start", "time_s": 1.0, "world_size": 1, "rank": 0, "host": {}, "pid": -1e308,'
    ' "local_world_size": 1, "num_nodes": 1, "schema": 2, "node": 0, "device": "cpu"}\n'
    + STEPS % (10, 10, 100, 0, 1.0)
    + '{"event": "evaluate", "time_s": 4.0, "step": 10, "epoch": 0, "accuracy": -1e308}\n'
    + STEPS % (1, 1, 10**250, '"0"', "{}")
    + STEPS % (-5, -5, 1, -1e308, 1e308)
    + STEPS % (10**250, 1, 1, 0, '"x"')
    + '{"event": "end", "time_s": 4.0, "status": {"x": {}}}\n'
)
OF_ALL = (
    *(["runs"], ["runs", "--json"], ["status"], ["watch", "--once"], ["summary"], ["gc"]),
    *(["summary", "--json"], ["summary", "--csv", "-"]),
    ["summary", "--html", "page.html", "--markdown", "page.md"],
)
OF_ONE = (
    *(["status", "hurt"], ["logs", "hurt"], ["logs", "hurt", "--json"], ["cancel", "hurt"]),
    ["logs", "hurt", "--follow"],
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


def fields(name, **values):
    """A damage: other fields in a file of the run."""
    return lambda run: change(getattr(run, name), **values)


def events(content):
    return lambda run: replace(run.event_file(0), content)


def lost(**keys):
    ended = {"kind": "agent_lost", "state": "failed", "message": "x", "exit_code_of_run": 1}
    return fields("verdict_file", **ended | keys)


def as_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def as_link_to_itself(path):
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def every(damage):
    """Damage each file of a kind, those that are there with these names before."""

    def hurt(run):
        files_of_run = (run.spec_file, run.submission_file, run.verdict_file)
        for path in (*files_of_run, run.event_file(0), run.log_file(0)):
            damage(path)

    return hurt


def after_unlink(make):
    return every(lambda path: (path.unlink(), make(path)))


def of_one_that_goes_on(damage):
    return lambda run: (run.verdict_file.unlink(), damage(run))


def odd_events(**values):
    """Events of a run that goes on, whose fields are not as they should be."""
    odd = [
        {"event": "start", "time_s": 1.0, "world_size": 1e300, "host": 5, "pid": 1e300},
        {"event": "setup", "time_s": 1.0, "total_steps": 1e308},
        {"event": "steps", "time_s": 1.0, **values},
        {"event": "end", "time_s": 1.0, "status": [1]},
    ]

    def hurt(run):
        for rank, most in ((0, 3), (1, 4)):
            lines = "".join(json.dumps(event) + "\n" for event in odd[:most])
            run.event_file(rank).write_text(lines)

    return of_one_that_goes_on(hurt)


def folders(run):
    return [each for each in os.scandir(run.path) if each.is_dir()]


DAMAGES = {
    "deep spec": text("spec_file", DEEP),
    "surrogates in the spec": text("spec_file", SURROGATE),
    "surrogates in the verdict": text(
        "verdict_file",
        r'{"kind": "exit", "state": "failed", "message": "\ud801", "exit_code_of_run": 1}',
    ),
    "attempt ²": lambda run: (run.attempts_folder / "²").mkdir(),
    "attempt ٣": lambda run: (run.attempts_folder / "٠٠٠٠٣").mkdir(),
    "attempt of 250 digits": lambda run: (run.attempts_folder / ("1" * 250)).mkdir(),
    "a rank of 200 digits": lambda run: (
        run.event_file(0).rename(run.events_folder / f"rank-{'9' * 200}.jsonl"),
        run.log_file(0).rename(run.logs_folder / f"rank-{'9' * 200}.log"),
    ),
    "no folders": lambda run: [shutil.rmtree(each.path) for each in folders(run)],
    "files for folders": lambda run: [
        (shutil.rmtree(each.path), replace(run.path / each.name)) for each in folders(run)
    ],
    "pipes": after_unlink(os.mkfifo),
    "devices": every(as_device),
    "folders": after_unlink(os.mkdir),
    "sparse files": every(lambda path: (replace(path), os.truncate(path, 260_000_000))),
    "a world of 10^18 ranks": events(
        '{"event": "start", "time_s": 1.0, "world_size": 1000000000000000000}\n'
    ),
    "links to themselves": lambda run: (
        every(as_link_to_itself)(run),
        as_link_to_itself(run.submitit_folder / "made-here.log"),
        as_link_to_itself(run.agent_file(0)),
        as_link_to_itself(run.agent_log_file(0)),
    ),
    "NUL in a checkpoint's path": fields(
        "spec_file", job={"name": "ddp", "workload": "train", "checkpoint": {"resume": "a\0b"}}
    ),
    "NUL in a sweep's id": fields("spec_file", sweep={"id": "a\0b", "index": 0}),
    "a sweep elsewhere": fields("spec_file", sweep={"id": "../x", "index": 0}),
    "NUL in a scheduler": of_one_that_goes_on(fields("submission_file", scheduler="a\0b")),
    "NUL in a log's name": lost(rank=0, log="a\0b"),
    "a log elsewhere": lost(rank=99, log="/etc/passwd"),
    "a negative rank": lost(rank=-1, node=-1),
    "events beyond all time": odd_events(
        step=1, steps=1, wall_s=1e308, samples=1e308, loss=1e308, epoch=10**30
    ),
    "times that no clock shows": lambda run: [
        replace(run.spec_file, '{"created_s": -1e308, "job": {"name": "x"}}'),
        replace(run.submission_file, '{"scheduler": "local", "job_id": 1e308}'),
        change(run.verdict_file, time_s=float("-inf")),
        replace(run.attempts_folder / "00000/begin.json", '{"life": 0, "time_s": Infinity}'),
    ],
    "numbers that nobody measures": lambda run: [
        change(run.spec_file, job={"workload": "train", "checkpoint": {"every_steps": -1e308}}),
        replace(run.event_file(0), IMPOSSIBLE),
    ],
    "numbers that nobody measures, of a run that goes on": of_one_that_goes_on(events(IMPOSSIBLE)),
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_run_breaks_no_verb_about_itself(runs, capsys, damage):
    hurt = write_run(runs, "hurt-20260101-000001-bbbb")
    damage(hurt)
    assert "fine-20260101-000000-aaaa" in works(["watch", "--once"], capsys)
    for verb in OF_ONE[: 4 if not hurt.verdict_file.exists() else None]:
        works(verb, capsys, (0, 2, 3))


@pytest.mark.timeout(120)
def test_damaged_runs_break_no_verb_for_the_other_runs(runs, capsys):
    for number, damage in enumerate(DAMAGES.values()):
        damage(write_run(runs, f"hurt-20260101-0000{number:02d}-bbbb"))
    for verb in OF_ALL:
        out = works(verb, capsys)
        assert verb[0] != "runs" or "fine-20260101-000000-aaaa" in out, verb


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("deep spec", "spec.json cannot be read: it is nested more than 64 levels deep"),
        ("surrogates in the verdict", "verdict.json cannot be read: it is not UTF-8 text"),
        ("pipes", "spec.json cannot be read: it is not a regular file"),
        ("sparse files", "spec.json cannot be read: it has 260 MB, and no more than 16 MB are"),
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


def test_a_run_that_is_removed_while_it_is_read_breaks_no_verb(runs, capsys, monkeypatch):
    """Removed before its nth file is opened, for every n."""
    regular = files.open_regular
    for verb in (["runs"], ["status"], ["watch", "--once"], ["summary"], ["gc"]):
        for number in range(12):
            going = write_run(runs, "going-20260101-000001-bbbb")
            going.verdict_file.unlink()
            countdown = iter(range(number))

            def open_or_remove(path, *arguments, going=going, countdown=countdown, **options):
                if going.id in str(path) and next(countdown, None) is None:
                    shutil.rmtree(going.path, ignore_errors=True)
                return regular(path, *arguments, **options)

            monkeypatch.setattr(files, "open_regular", open_or_remove)
            assert main(verb) == 0, (verb, number)
            shutil.rmtree(going.path, ignore_errors=True)
            assert "Traceback" not in capsys.readouterr().err


EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;t\x1b\\\x1b[2J\x9b2J\x9d0;t\x9c\x1bPq\x1b\\\r\x08\x7f\x85\x1b"
ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write_evil_run(runs, *, verdict):
    run = write_run(runs, f"evil{EVIL}-20260101-000001-bbbb")
    evil = {"name": EVIL, "workload": EVIL, "description": EVIL}
    job = json.loads(run.spec_file.read_text())["job"] | evil | {"strategy": EVIL}
    spec = {"created_s": 1.7e9, "job": job, "host": EVIL, "user": EVIL, "versions": {"torch": EVIL}}
    if not verdict:
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
    if verdict:
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


@pytest.mark.parametrize("verdict", [True, False], ids=["ended", "goes on"])
def test_no_text_of_a_run_acts_on_the_terminal(runs, capsys, verdict):
    run = write_evil_run(runs, verdict=verdict)
    assert main(["logs", "evil", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told == {"rank": 0, "attempt": 0, "path": str(run.log_file(0))}
    for verb in (
        *OF_ALL,
        *(["evil" if word == "hurt" else word for word in one] for one in OF_ONE),
    ):
        main(verb)
        out, err = capsys.readouterr()
        assert not ACTING.search(out + err), (verb, out, err)
