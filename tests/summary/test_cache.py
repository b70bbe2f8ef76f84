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
def varied(make_run, events):
    """Runs in which something of everything happens."""

    def steady(run, rank, world_size, rates, **options):
        start = events.start(rank, world_size=world_size)
        events.write(run, rank, [start, *events.steady(rates)], **options)

    one = make_run("one")
    steady(one, 0, 1, [90.0, 100.0, 110.0, 100.0])
    two = make_run("two", gpus=2)
    for rank in range(2):
        steady(two, rank, 2, [100.0 + rank] * 8, torn=b'{"event":"steps","st')
        steady(two, rank, 2, [120.0] * 4, attempt=1)
    going = make_run("going", verdict=None)
    steady(going, 0, 1, [50.0] * 5)
    odd = make_run("odd", job="j\u00f6b")
    (odd.events_folder / "notes.txt").write_text("mine")
    return [one, two, going, odd]


def figures(runs, **options):
    summary = summarize(runs, {"going": "running"}, **options)
    return to_json(summary), msgspec.to_builtins(summary.groups), summary.skipped


def test_figures_are_the_same_with_those_that_are_kept(varied):
    plain = figures(varied)
    assert plain[2]  # torn lines are told each time
    for _ in range(2):
        assert figures(varied, uses_kept=True) == plain
    assert kept(varied) == ["odd", "one", "two"]


def kept(runs):
    return sorted(run.id for run in runs if run.figures_file.exists())


def unsealed(content):
    return msgspec.msgpack.decode(content[hashlib.sha256().digest_size :])


def sealed(value):
    """A kept file whose digest is right, whatever it holds."""
    content = msgspec.msgpack.encode(value)
    return hashlib.sha256(content).digest() + content


def poison(run):
    """Have the kept figures tell another job's name, so that it shows when they are used."""
    content = unsealed(run.figures_file.read_bytes())
    content["content"]["run"]["figures"]["job"] = "kept"
    run.figures_file.write_bytes(sealed(content))


def job_of(run):
    return summarize([run], {}, uses_kept=True).runs[0].job


@pytest.fixture
def cached(varied):
    """A run whose kept figures call it another job."""
    run = varied[0]
    summarize([run], {}, uses_kept=True)
    poison(run)
    assert job_of(run) == "kept"
    return run


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda run: append(run.event_file(0)), id="an event more"),
        pytest.param(lambda run: run.event_file(1).write_bytes(b""), id="a rank more"),
        pytest.param(lambda run: os.unlink(run.event_file(0)), id="a rank less"),
        pytest.param(lambda run: replace(run.verdict_file), id="another verdict, of equal size"),
        pytest.param(lambda run: run.claim_attempt(), id="an attempt more"),
        pytest.param(lambda run: replace(run.spec_file), id="spec.json written anew"),
        pytest.param(lambda run: overwrite(run.event_file(0)), id="overwritten, times put back"),
    ],
)
def test_a_run_whose_files_changed_is_read_again(cached, change):
    change(cached)
    assert job_of(cached) == "ddp"


def append(path):
    with path.open("ab") as file:
        file.write(b'{"event":"note","message":"m"}\n')


def replace(path):
    files.write_whole(path, path.read_bytes())


def overwrite(path):
    times = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"host0", b"host1"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_nothing_is_kept_in_the_folder_of_another_users_run(varied, monkeypatch):
    monkeypatch.setattr("hpcdist.summary.measuring.is_own", lambda _: False)
    summarize(varied, {}, uses_kept=True)
    assert kept(varied) == []


def other_version(whole):
    return sealed(unsealed(whole) | {"digest": b"0"})


def odd_figures(whole):
    return sealed(unsealed(whole) | {"content": {"run": 1}})


def test_no_damage_to_kept_figures_gives_another_number(cached):
    whole = cached.figures_file.read_bytes()
    assert read_kept(cached) is not None
    draw = random.Random(1)
    for place in draw.sample(range(len(whole)), 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        cached.figures_file.write_bytes(flipped)
        assert read_kept(cached) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda whole: whole[: len(whole) // 2], id="torn"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"\x00foreign", id="foreign"),
        pytest.param(other_version, id="of another version"),
        pytest.param(odd_figures, id="with figures of another form"),
    ],
)
def test_damaged_or_foreign_figures_are_ignored_and_written_anew(cached, content):
    cached.figures_file.write_bytes(content(cached.figures_file.read_bytes()))
    assert job_of(cached) == "ddp"
    poison(cached)
    assert job_of(cached) == "kept"


def test_a_run_whose_name_is_no_text_is_measured_and_not_kept(make_run, events):
    run = make_run(os.fsdecode(b"run-\xff"))
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 4)])
    for options in ({}, {"uses_kept": True}):
        (found,) = summarize([run], {}, **options).runs
        assert found.samples_per_s.mean == pytest.approx(100)


def test_of_kept_runs_only_the_spec_is_read_and_schedulers_are_asked_for_those_without_verdict(
    varied, monkeypatch
):
    asked, opened = [], []

    def states(runs):
        asked.append([run.id for run in runs])
        return {"going": "running"}

    def summary(accounting):
        found = all_runs(varied[0].path.parent)
        return summarize(found, states, accounting=accounting, uses_kept=True)

    first = summary(lambda _: {})
    assert asked == [["going"], []]
    opens = files.open_regular
    note = lambda path, **options: opened.append(str(path)) or opens(path, **options)  # noqa: E731
    monkeypatch.setattr("hpcdist.base.files.open_regular", note)
    again = summary(lambda runs: asked.append([run.id for run in runs]) or {})
    assert to_json(again) == to_json(first)
    for run in varied:
        if run.id != "going":
            assert [path for path in opened if run.id in path.split("/")] == [str(run.spec_file)]
    assert asked[2:4] == [["going"], []]


def test_a_run_whose_verdict_is_torn_is_asked_for_once_it_was_read(varied):
    varied[0].verdict_file.write_text('{"kind"')
    asked = []

    def states(runs):
        asked.append([run.id for run in runs])
        return {run.id: "lost" for run in runs}

    found = summarize(varied, states).runs
    assert asked == [["going"], ["one"]]
    assert [run.state for run in found] == ["lost", "done", "lost", "done"]


# What a run leaves beside it at its end.


@pytest.fixture
def trained(make_run, events):
    """A run of two ranks that has ended."""
    run = make_run("trained", gpus=2)
    for rank in range(2):
        start = events.start(rank, world_size=2)
        events.write(run, rank, [start, *events.steady([100.0 + rank] * 9)])
    return run


@pytest.fixture
def opened(monkeypatch):
    """Names of the event files that were opened."""
    names = []
    opens = files.open_regular

    def open_regular(path, **options):
        if str(path).endswith(".jsonl"):
            names.append(os.path.basename(path))
        return opens(path, **options)

    monkeypatch.setattr("hpcdist.base.files.open_regular", open_regular)
    return names


@pytest.fixture
def read(trained):
    """Return the figures as a summary has them that may use those that are kept."""

    def summary():
        return to_json(summarize(all_runs(trained.path.parent), {}, uses_kept=True))

    return summary


def test_the_first_summary_of_a_run_whose_figures_are_kept_reads_no_events(trained, read, opened):
    plain = read()
    assert len(opened) == 2
    measure(trained, keeps=True)
    opened.clear()
    assert read() == plain
    assert opened == []
    assert to_json(summarize([trained], {})) == plain  # all is read unless it may be used
    assert len(opened) == 2


def test_kept_figures_that_others_may_write_are_not_used(trained, read, opened):
    measure(trained, keeps=True)
    trained.figures_file.chmod(0o666)
    opened.clear()
    read()
    assert len(opened) == 2


def test_figures_of_other_code_are_not_used(trained, read, opened, monkeypatch):
    measure(trained, keeps=True)
    monkeypatch.setattr("hpcdist.summary.measuring.code_version", lambda: "another")
    opened.clear()
    read()
    assert len(opened) == 2


def test_a_run_without_a_verdict_keeps_nothing(trained):
    trained.verdict_file.unlink()
    measure(trained, keeps=True)
    entry.keep_figures(trained)
    assert not trained.figures_file.exists()


@pytest.mark.parametrize(
    ("bound", "value", "is_kept"),
    [("_LEAST_BYTES", 1, True), ("_LEAST_BYTES", 10**6, False), ("_MOST_FILES", 1, False)],
)
def test_the_end_of_a_run_keeps_figures_that_are_worth_it_and_delays_no_thousand_nodes(
    trained, monkeypatch, bound, value, is_kept
):
    monkeypatch.setattr(entry, "_LEAST_BYTES", 1)
    monkeypatch.setattr(entry, bound, value)
    entry.keep_figures(trained)
    assert trained.figures_file.exists() == is_kept


def test_a_disk_that_is_full_ends_no_run(trained, monkeypatch):
    monkeypatch.setattr(entry, "_LEAST_BYTES", 1)

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcdist.base.files.write_whole", fail)
    entry.keep_figures(trained)
    assert not trained.figures_file.exists()
