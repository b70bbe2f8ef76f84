"""Runs that are brought home: at once, as they grow, and from a host that lies."""

import json
import os
from pathlib import Path

import pytest
from another_user import NOBODY, needs_root

import hpcdist
from hpcdist.base.errors import ProfileError
from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import Run, all_runs

PERF = Path(__file__).parents[2] / "perf"
ID = "ddp-20261122-230221-przd"
OTHER = "ddp-20261122-230222-przd"


@pytest.fixture
def laptop(tmp_path, monkeypatch, call_laptop):
    """Calls the command in a project called work, with the given words for ssh."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments, ssh, code=0, **options):
        done = call_laptop(*arguments, ssh=ssh, **options)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    return call


def figures(text):
    """What a summary says of runs, without where they are, and whether they are alike by that."""
    where = ("path", "cluster", "ran_with", "configuration")
    runs = json.loads(text)
    return [
        {key: value for key, value in part.items() if key not in (*where, "cell")}
        for run in runs
        for part in (run, run["cell"] or {})
    ]


def test_runs_come_home_by_one_connection(laptop, login, monkeypatch, tmp_path):
    """And only what has been added, the next time."""
    monkeypatch.syspath_prepend(PERF)
    from made_runs import make_runs

    before = login.connections
    runs = login.home / "hpcdist" / "work" / "runs"
    runs.parent.mkdir(parents=True)
    make_runs(runs, num_runs=3, num_ranks=2, num_windows=10)
    there = laptop("summary", "--json", "--runs", str(runs), ssh="false")[0]

    out, _ = laptop("summary", "--host", "login", "--json", ssh=login.ssh)
    assert figures(out) == figures(there)
    assert login.connections == before + 1
    for listed in (out, laptop("runs", "--json", ssh="false")[0]):
        assert {run["cluster"] for run in json.loads(listed)} == {"login"}

    file = runs / all_runs(runs)[0].id / "events" / "rank-00000.jsonl"
    content = file.read_bytes()
    brought = tmp_path / "work" / "runs" / file.relative_to(runs)
    number = brought.with_name("rank-00001.jsonl").stat().st_ino
    file.write_bytes(content + content.splitlines(keepends=True)[-1])
    laptop("summary", "--json", ssh=login.ssh)
    assert login.connections == before + 2
    assert brought.with_name("rank-00001.jsonl").stat().st_ino == number  # not written again
    assert brought.read_bytes() == file.read_bytes()
    file.write_bytes(content.replace(b"1", b"2"))  # it is another file now, and comes whole
    laptop("summary", "--json", ssh=login.ssh)
    assert brought.read_bytes() == file.read_bytes()
    _, err = laptop("attach", file.parts[-3], ssh="false", code=2)
    assert "is at login, and attach opens its terminal there" in err


def test_what_lies_here_is_neither_replaced_nor_written_through(laptop, login, tmp_path):
    """A run of this machine has the name of one there, and a record has links for folders."""
    spec = json.dumps({"id": ID, "created_s": 1.0, "job": {"name": "ddp"}})
    for name in (ID, OTHER):
        there = login.home / "hpcdist" / "work" / "runs" / name
        (there / "events").mkdir(parents=True)
        (there / "spec.json").write_text(spec.replace(ID, name))
        (there / "events" / "rank-00000.jsonl").write_text("{}\n")
        (there / "secret").symlink_to("/etc/passwd")
    own, brought = (tmp_path / "work" / "runs" / name for name in (ID, OTHER))
    own.mkdir(parents=True)
    (own / "spec.json").write_text(spec + "\n")
    (outside := tmp_path / "outside").mkdir()
    brought.mkdir()
    (brought / "events").symlink_to(outside)
    record = {"host": "login", "folder": "hpcdist", "project": "work"}
    (brought / "remote.json").write_text(json.dumps(record))
    laptop("summary", "--host", "login", "--json", ssh=login.ssh)
    assert (own / "spec.json").read_text() == spec + "\n"
    assert read_remote(Run(own)) is None
    assert list(own.iterdir()) == [own / "spec.json"]
    assert (brought / "events" / "rank-00000.jsonl").is_file()
    assert not list(outside.iterdir())
    assert not (brought / "secret").exists()


ELSEWHERE = "clusters: {far: {scheduler: lsf, host: strange.example}}\n"


@pytest.fixture
def called(laptop, tmp_path):
    """Calls a verb, and returns its errors and whether ssh was called."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 255\n")
    ssh.chmod(0o755)

    def call(*verb, code):
        (tmp_path / "called").unlink(missing_ok=True)
        _, err = laptop(*verb, ssh=str(ssh), code=code)
        return err, (tmp_path / "called").exists()

    return call


@pytest.mark.parametrize("verb", [("runs",), ("logs", ID)])
def test_a_record_from_elsewhere_leads_to_no_host_that_was_never_named(called, tmp_path, verb):
    run = tmp_path / "work" / "runs" / ID
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"id": ID, "created_s": 1.0, "job": {"name": "ddp"}}))
    record = {"host": "strange.example", "folder": "hpcdist", "project": "work"}
    (run / "remote.json").write_text(json.dumps(record))
    err, was_called = called(*verb, code=2 if ID in verb else 0)
    assert "never named" in err
    assert not was_called


@pytest.mark.parametrize("verb", [("submit", "ddp"), ("explain", "ddp"), ("doctor",)], ids=" ".join)
def test_no_host_of_a_project_is_called_before_the_user_has_named_it(called, tmp_path, verb):
    Path("hpcdist.yaml").write_text(ELSEWHERE)
    err, was_called = called(*verb, code=2)
    assert "far.host is strange.example, which you have never named on this machine" in err
    assert "hpcdist runs --host strange.example" in err
    assert not was_called
    assert not list(tmp_path.rglob("hosts.json"))


def test_a_host_that_the_user_has_named_is_followed(called, tmp_path, monkeypatch):
    """Once for a project's profile, or in a file of the user's own."""
    called("runs", "--host", "strange.example", code=3)
    Path("hpcdist.yaml").write_text(ELSEWHERE)
    err, was_called = called("render", "ddp", code=3)
    assert was_called
    assert "never named" not in err
    Path("hpcdist.yaml").unlink()
    next(tmp_path.rglob("hosts.json")).unlink()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "hpcdist" / "hpcdist.yaml"
    own.parent.mkdir()
    own.write_text(ELSEWHERE)
    assert called("render", "ddp", code=3)[1]
    assert "strange.example" in next(tmp_path.rglob("hosts.json")).read_text()


@needs_root
@pytest.mark.parametrize("opened", ["owner", "group", "everyone"])
def test_a_host_that_others_can_have_written_is_refused_even_if_it_is_known(called, opened):
    called("runs", "--host", "strange.example", code=3)
    path = Path("hpcdist.yaml")
    path.write_text(ELSEWHERE)
    if opened == "everyone":
        path.chmod(0o666)
    else:
        os.chown(path, NOBODY if opened == "owner" else 0, NOBODY)
        path.chmod(0o644 if opened == "owner" else 0o664)
    err, was_called = called("submit", "ddp", code=2)
    assert not was_called
    assert "far.host is strange.example, and " in err
    assert "your work tree would go to a host of their choice" in err


def test_python_refuses_a_profile_that_is_for_a_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("hpcdist.yaml").write_text(f"default: far\n{ELSEWHERE}")
    with pytest.raises(ProfileError, match=r"hpcdist.yaml: clusters\.far\.host is strange"):
        hpcdist.submit("ddp", nodes=1, gpus=1)
    with pytest.raises(ProfileError, match=r"far\.host"):
        hpcdist.sweep("ddp", over={"nodes": [1, 2]}, cluster="far")
