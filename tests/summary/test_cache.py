"""Figures with and without the cache and workers, and when the cache must not be used."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.summary import SummaryCache, search_runs, summarize, to_json
from hpcdist.summary.read.cache import take_fingerprint

_LONG_AGO_S = 1.6e9


@pytest.fixture
def clock(monkeypatch):
    """Moves the clock that the age of changes is seen by."""

    def move(seconds):
        now_s = time.time() + seconds
        monkeypatch.setattr("hpcdist.summary.measuring.time.time", lambda: now_s)

    return move


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


def test_figures_are_the_same_with_workers_and_with_the_cache(varied, tmp_path, clock):
    clock(10)
    cache = tmp_path / "cache"
    plain = figures(varied)
    assert plain[2]  # torn lines and foreign files are told each time
    assert figures(varied, num_workers=2) == plain
    for _ in range(2):
        assert figures(varied, cache=SummaryCache(cache)) == plain
    assert kept(cache) == ["odd", "one", "two"]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_large_run_gives_the_same_figures_though_its_ranks_are_divided_among_workers(
    varied, monkeypatch, num_workers
):
    plain = figures(varied)
    monkeypatch.setattr("hpcdist.summary.measuring._LARGE_RUN_BYTES", 0)
    monkeypatch.setattr("hpcdist.summary.measuring._RANKS_AT_ONCE", 1)
    assert figures(varied, num_workers=num_workers) == plain


def kept(folder):
    found = [unsealed(path.read_bytes()) for path in folder.glob("*.msgpack")]
    return sorted(name for one in found for name in one["runs"])


def unsealed(content):
    return msgspec.msgpack.decode(content[hashlib.sha256().digest_size :])


def sealed(value):
    """A file of the cache whose digest is right, whatever it holds."""
    content = msgspec.msgpack.encode(value)
    return hashlib.sha256(content).digest() + content


def poison(folder):
    """Have the cache tell another job's name of every run, so that it shows when it is used."""
    for path in folder.glob("*.msgpack"):
        content = unsealed(path.read_bytes())
        for entry in content["runs"].values():
            if isinstance(entry["measured"]["run"], dict):
                entry["measured"]["run"]["figures"]["job"] = "cached"
        path.write_bytes(sealed(content))


def jobs(runs, folder):
    return [run.job for run in summarize(runs, {}, cache=SummaryCache(folder)).runs]


@pytest.fixture
def cached(varied, tmp_path, clock):
    """A run that is in the cache, where it is called another job; and the cache's folder."""
    clock(10)
    folder = tmp_path / "cache"
    summarize(varied, {}, cache=SummaryCache(folder))
    poison(folder)
    assert jobs(varied[:1], folder) == ["cached"]
    return varied[0], folder


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
    run, folder = cached
    change(run)
    assert jobs([run], folder) == ["ddp"]


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


def test_a_run_that_goes_on_is_never_kept_nor_one_that_changed_just_now(varied, tmp_path, clock):
    clock(0)
    summarize(varied, {}, cache=SummaryCache(tmp_path / "cache"))
    assert kept(tmp_path / "cache") == []
    clock(60)
    summarize(varied, {}, cache=SummaryCache(tmp_path / "cache"))
    assert "going" not in kept(tmp_path / "cache")


def test_a_run_without_verdict_is_kept_when_nothing_has_changed_for_long(varied, tmp_path, clock):
    clock(2 * 3600)
    going = varied[2]
    for state in ("running", "lost"):  # the state is asked for each time
        (run,) = summarize([going], {"going": state}, cache=SummaryCache(tmp_path / "cache")).runs
        assert run.state == state
    assert kept(tmp_path / "cache") == ["going"]


def other_version(whole):
    return sealed(unsealed(whole) | {"version": "0"})


def odd_figures(whole):
    content = unsealed(whole)
    for entry in content["runs"].values():
        entry["measured"] = {"run": 1}
    return sealed(content)


def readable_by_others(path):
    path.chmod(0o644)


def a_link(path):
    path.rename(path.with_suffix(".mine"))
    path.symlink_to(path.with_suffix(".mine"))


@pytest.mark.parametrize("change", [readable_by_others, a_link])
def test_a_cache_that_is_not_private_is_ignored(cached, change):
    run, folder = cached
    (file,) = folder.glob("*.msgpack")
    change(file)
    assert jobs([run], folder) == ["ddp"]


def test_no_damage_to_the_cache_gives_another_number(cached):
    run, folder = cached
    (file,) = folder.glob("*.msgpack")
    whole, fingerprint = file.read_bytes(), take_fingerprint(run)
    assert SummaryCache(folder).find(run, fingerprint) is not None
    draw = random.Random(1)
    for place in draw.sample(range(len(whole)), 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        file.write_bytes(flipped)
        assert SummaryCache(folder).find(run, fingerprint) is None
    for _ in range(3):  # and what is measured then is what the files say
        assert jobs([run], folder) == ["ddp"]
        file.write_bytes(flipped)


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
def test_a_damaged_or_foreign_cache_is_ignored_and_written_anew(cached, content):
    run, folder = cached
    (file,) = folder.glob("*.msgpack")
    file.write_bytes(content(file.read_bytes()))
    assert jobs([run], folder) == ["ddp"]
    poison(folder)
    assert jobs([run], folder) == ["cached"]


def test_entries_of_deleted_runs_are_dropped_when_the_cache_is_written(cached, varied):
    run, folder = cached
    files_of = varied[3]
    for folder_of_run, _, names in os.walk(files_of.path, topdown=False):
        for name in names:
            os.unlink(os.path.join(folder_of_run, name))
        os.rmdir(folder_of_run)
    append(run.event_file(0))
    summarize([run], {}, cache=SummaryCache(folder))
    assert kept(folder) == ["one", "two"]


def test_the_cache_stays_below_its_limit(varied, tmp_path, clock, monkeypatch):
    clock(10)
    folder = tmp_path / "cache"
    summarize(varied[:1], {}, cache=SummaryCache(folder))
    (path,) = folder.glob("*.msgpack")
    old = folder / "0123.msgpack"
    old.write_bytes(bytes(100))
    os.utime(old, (_LONG_AGO_S, _LONG_AGO_S))
    monkeypatch.setattr("hpcdist.summary.read.cache._MOST_BYTES", path.stat().st_size + 50)
    append(varied[0].event_file(0))
    summarize(varied[:1], {}, cache=SummaryCache(folder))
    assert [file.name for file in folder.iterdir()] == [path.name]
    monkeypatch.setattr("hpcdist.summary.read.cache._MOST_BYTES", 10)
    append(varied[0].event_file(0))
    summarize(varied[:1], {}, cache=SummaryCache(folder))
    assert list(folder.iterdir()) == []


def test_the_cache_is_private_and_a_folder_that_cannot_be_written_is_told(varied, tmp_path, clock):
    clock(10)
    folder = tmp_path / "cache" / "hpcdist"
    summarize(varied, {}, cache=SummaryCache(folder))
    assert folder.stat().st_mode & 0o77 == 0
    assert [file.stat().st_mode & 0o77 for file in folder.iterdir()] == [0]
    (tmp_path / "file").write_text("")
    told = []
    cache = SummaryCache(tmp_path / "file" / "hpcdist")
    assert len(summarize(varied, {}, cache=cache, warn=told.append).runs) == 4
    assert told == [f"figures cannot be kept in {cache.folder}: Not a directory"]


def test_a_run_whose_name_is_no_text_is_measured_by_workers_too(make_run, events, tmp_path, clock):
    clock(10)
    run = make_run(os.fsdecode(b"run-\xff"))
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 4)])
    for options in ({}, {"num_workers": 2}, {"cache": SummaryCache(tmp_path / "cache")}):
        (found,) = summarize([run], {}, **options).runs
        assert found.samples_per_s.mean == pytest.approx(100)


def test_a_pipe_among_the_event_files_is_told_and_does_not_block(varied):
    os.mkfifo(varied[0].event_file(1))
    assert (
        f"{varied[0].event_file(1)}: skipped, it cannot be read: it is a pipe, not a regular file"
    ) in summarize(varied[:1], {}).skipped


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('{"time_s": 1, "message": "m", "event": "note"}', id="its kind last"),
        pytest.param('{ "event" : "note" , "message" : "m"}', id="blanks"),
        pytest.param(json.dumps({"event": "note", "message": "m"}, indent=None), id="as json has"),
        pytest.param('{"\\u0065vent":"note","message":"m"}', id="an escaped key"),
    ],
)
def test_events_are_read_in_whatever_form_of_json(varied, line):
    with varied[0].event_file(0).open("a") as file:
        file.write(f"{line}\n\n  \n")
    summary = summarize(varied[:1], {})
    assert (summary.runs[0].notes, summary.skipped) == (["m"], [])


def test_the_fingerprint_counts_the_bytes_of_events(varied):
    run = varied[1]
    sizes = [path.stat().st_size for _, _, path in run.event_files()]
    assert take_fingerprint(run).event_bytes == sum(sizes) > 0


def test_of_kept_runs_only_the_spec_is_read_and_schedulers_are_asked_for_those_without_verdict(
    varied, tmp_path, clock, monkeypatch
):
    clock(10)
    asked, opened = [], []

    def states(runs):
        asked.append([run.id for run in runs])
        return {"going": "running"}

    def summary(accounting):
        found = search_runs(varied[0].path.parent).runs
        cache = SummaryCache(tmp_path / "cache")
        return summarize(found, states, accounting=accounting, cache=cache)

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
