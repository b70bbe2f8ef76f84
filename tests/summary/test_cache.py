"""Figures that are kept, and when these must not be used."""

from __future__ import annotations

import hashlib
import os
import random

import msgspec
import pytest

from hpcdist import entry
from hpcdist.base import files
from hpcdist.runs.run import all_runs
from hpcdist.summary import summarize, to_json
from hpcdist.summary.measuring import measure, read_kept


@pytest.fixture
def varied(make_run, record_run, events):
    """Runs in which something of everything happens."""

    one = record_run("one", events.steady([90.0, 100.0, 110.0, 100.0]))
    two = record_run("two", *[events.steady([120.0] * 4)] * 2)
    for rank in range(2):
        made = [events.start(rank, world_size=2), *events.steady([100.0 + rank] * 8)]
        events.write(two, rank, made, attempt=1, torn=b'{"event":"steps","st')
    going = record_run("going", events.steady([50.0] * 5), verdict=None)
    odd = make_run("odd", job="j\u00f6b")
    (odd.events_folder / "notes.txt").write_text("mine")
    return [one, two, going, odd]


def figures(runs, **options):
    summary = summarize(runs, {"going": "running"}, **options)
    return to_json(summary), msgspec.to_builtins(summary.groups), summary.skipped


def kept(runs):
    return sorted(run.id for run in runs if run.figures_file.exists())


def test_figures_are_the_same_with_those_that_are_kept(varied):
    plain = figures(varied)
    assert plain[2]  # torn lines are told each time
    for _ in range(2):
        assert figures(varied, uses_kept=True) == plain
    assert kept(varied) == ["odd", "one", "two"]


def sealed(value):
    """A kept file whose digest is right, whatever it holds."""
    content = msgspec.msgpack.encode(value)
    return hashlib.sha256(content).digest() + content


def poison(run):
    """Have the kept figures tell another job's name, so that it shows when they are used."""
    content = run.figures_file.read_bytes()[hashlib.sha256().digest_size :]
    value = msgspec.msgpack.decode(content)
    value["run"]["figures"]["job"] = "kept"
    run.figures_file.write_bytes(sealed(value))
    return value


def job_of(run):
    return summarize([run], {}, uses_kept=True).runs[0].job


@pytest.fixture
def cached(varied):
    """A run whose kept figures call it another job."""
    run = varied[0]
    measure(run, keeps=True)
    poison(run)
    assert job_of(run) == "kept"
    return run


def replace(path):
    files.write_whole(path, path.read_bytes())


def overwrite(path):
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"host0", b"host1"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES = {
    "a rank more": lambda run: run.event_file(1).write_bytes(b""),
    "another verdict, of equal size": lambda run: replace(run.verdict_file),
    "an attempt more": lambda run: run.claim_attempt(),
    "spec.json written anew": lambda run: replace(run.spec_file),
    "overwritten, times put back": lambda run: overwrite(run.event_file(0)),
    "others may write the figures": lambda run: run.figures_file.chmod(0o666),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_run_whose_files_changed_is_read_again(cached, change):
    change(cached)
    assert job_of(cached) == "ddp"


def test_figures_of_other_code_are_not_used(cached, monkeypatch):
    monkeypatch.setattr("hpcdist.summary.measuring.code_version", lambda: "another")
    assert job_of(cached) == "ddp"


def test_nothing_is_kept_in_the_folder_of_another_users_run(varied, monkeypatch):
    monkeypatch.setattr("hpcdist.summary.measuring.is_own", lambda _: False)
    summarize(varied, {}, uses_kept=True)
    assert kept(varied) == []


def test_damaged_or_foreign_figures_are_ignored_and_written_anew(cached):
    whole, value = cached.figures_file.read_bytes(), poison(cached)
    draw = random.Random(1)
    damaged = [b"", whole[: len(whole) // 2], sealed(value | {"run": 1})]
    for place in draw.sample(range(len(whole)), 20):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        cached.figures_file.write_bytes(content)
        assert read_kept(cached) is None
    assert job_of(cached) == "ddp"
    assert read_kept(cached) is not None


def test_of_kept_runs_only_the_spec_is_read_and_schedulers_are_asked_for_those_without_verdict(
    varied, monkeypatch
):
    asked, opened = [], []

    def states(runs):
        asked.append([run.id for run in runs])
        return {"going": "running"}

    def summary():
        found = all_runs(varied[0].path.parent)
        return to_json(summarize(found, states, uses_kept=True))

    first = summary()
    assert asked == [["going"], []]
    opens = files.open_regular
    note = lambda path, **options: opened.append(str(path)) or opens(path, **options)  # noqa: E731
    monkeypatch.setattr("hpcdist.base.files.open_regular", note)
    assert summary() == first
    for run in varied:
        if run.id != "going":
            assert [path for path in opened if run.id in path.split("/")] == [str(run.spec_file)]


def test_the_end_of_a_run_keeps_figures_that_are_worth_it(varied, monkeypatch):
    entry.keep_figures(varied[1])  # its events are few
    monkeypatch.setattr(entry, "_LEAST_BYTES", 1)
    with monkeypatch.context() as nodes:
        nodes.setattr(entry, "_MOST_FILES", 1)
        entry.keep_figures(varied[1])  # a thousand nodes would wait
    assert kept(varied) == []
    for run in varied[1:3]:
        entry.keep_figures(run)
    assert kept(varied) == ["two"]  # the other run has no verdict
