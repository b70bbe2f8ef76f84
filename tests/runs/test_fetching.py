"""Run directories that are brought home."""

import hashlib
import io
import json
import os
from pathlib import Path

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.runs import fetching, publishing
from hpcdist.runs.paths import RunPaths, _Within
from hpcdist.runs.publishing import Entry, FolderSource, Listing, Publisher, is_wanted
from hpcdist.runs.run import Run

LARGE = 2 << 20
NOT_FOR_NODES = (
    *("../escaped", "spec.json", "fetched.json", "submitit/x", "remote.json", "sweep.json"),
    *("figures.msgpack", "cancel", "launch/cancel", "launch/requests", "launch/missed.json"),
    *("launch/answer-0123456789abcdef.json", "function.pkl"),
)
FOLDERS = ("attempts", "checkpoints", "errors", "events", "logs", "traces")


class Elsewhere(FolderSource):
    """A source that counts what is read, and may break."""

    def __init__(self, folder):
        super().__init__(folder)
        self.copied, self.breaks_at, self.most_bytes = [], None, None

    def copy(self, name, to):
        if self.breaks_at == len(self.copied):
            raise TimeoutError(110, "no answer")
        self.copied.append(name)
        counted = io.BytesIO()
        try:
            super().copy(name, Both(to, counted))
        finally:
            assert self.most_bytes is None or counted.tell() <= self.most_bytes


class Both:
    def __init__(self, *files):
        self.files = files

    def write(self, content):
        for file in self.files:
            file.write(content)


@pytest.fixture
def node(tmp_path):
    """A node that has published a run."""
    run, output = tmp_path / "node", tmp_path / "output"
    for folder in ("events", "checkpoints", "results"):
        (run / folder).mkdir(parents=True)
    output.mkdir()
    publisher = Publisher(run, output, node=0)

    def publish(**contents):
        for name, content in contents.items():
            (run / name.replace("__", "/")).write_bytes(content)
        publisher.publish(is_final=True)

    publish.source = Elsewhere(output)
    return publish


@pytest.fixture
def write_listing(tmp_path):
    """Write what no node writes: a listing, with the copies that its entries name."""

    def write(*entries, copies=None):
        folder = tmp_path / "output" / "node-00000" / "1999999999999999999-00000000"
        folder.mkdir()
        for name, content in (copies or {}).items():
            (folder / name).write_bytes(content)
        listing = Listing(time_s=2e9, files=list(entries), gone=[])
        (folder / "00000099.json").write_bytes(msgspec.json.encode(listing))

    return write


def entry_of(path, content, name, **odd):
    sha256 = hashlib.sha256(content).hexdigest()
    fields = {"path": path, "copy": name, "size": len(content), "sha256": sha256, "time_s": 2e9}
    return Entry(**fields | odd)


@pytest.fixture
def home(tmp_path):
    run = Run.create(tmp_path / "runs", "train")
    run.spec_file.write_text('{"created_s": 1.0, "job": {"name": "mine"}}')
    return run


def test_only_what_is_new_is_brought_and_an_interrupted_fetch_goes_on(node, home):
    node(events__a=b"1")
    node(events__b=b"2")
    node.source.breaks_at = 1
    with pytest.raises(TimeoutError):
        fetching.fetch(home, node.source)
    node.source.breaks_at = None
    assert fetching.fetch(home, node.source).num_files == 1
    assert len(node.source.copied) == len(set(node.source.copied)) == 2
    node(events__b=b"22")
    assert fetching.fetch(home, node.source).num_files == 1
    assert len(node.source.copied) == 3
    assert fetching.fetch(home, node.source).num_files == 0
    assert (home.events_folder / "b").read_bytes() == b"22"


def test_checkpoints_are_brought_where_that_is_asked_for_and_pickles_never(node, home):
    content = os.urandom(LARGE)
    node(checkpoints__a=content, results__rank=b"pickle")
    found = fetching.fetch(home, node.source)
    assert (found.num_files, found.num_left, found.left_bytes) == (0, 1, LARGE)
    assert fetching.fetch(home, node.source, with_checkpoints=True).num_files == 1
    assert (home.checkpoints_folder / "a").read_bytes() == content
    assert not (home.path / "results").exists()


def test_nothing_replaces_what_was_submitted_or_leads_out(node, home, write_listing):
    spec = home.spec_file.read_bytes()
    copies = {f"{n:08d}.copy": b"x" for n in range(len(NOT_FOR_NODES) + 1)}
    paths = (*NOT_FOR_NODES, "events/good")
    write_listing(
        *(entry_of(path, b"x", copy) for path, copy in zip(paths, copies, strict=True)),
        copies=copies,
    )
    assert fetching.fetch(home, node.source).num_files == 1
    assert home.spec_file.read_bytes() == spec
    assert (home.events_folder / "good").read_bytes() == b"x"
    assert not (home.path.parent / "escaped").exists()
    theirs = [home.path / path for path in NOT_FOR_NODES]
    assert not [path for path in theirs if path.exists() and path.read_bytes() == b"x"]


def test_every_file_that_hpcdist_reads_of_a_run_is_a_nodes_or_refused():
    places = {
        str(getattr(Run(Path()), name))
        for name, at in vars(RunPaths).items()
        if type(at) is _Within
    }
    of_nodes = {"verdict.json", "notify.log", *FOLDERS}
    assert {place for place in places if is_wanted(place)} == of_nodes


def test_a_copy_that_stands_for_several_files_is_of_no_node_and_listings_are_limited(
    node, home, write_listing, monkeypatch
):
    entries = [entry_of(f"events/{number}", b"x", "00000000.copy") for number in range(50)]
    write_listing(*entries, copies={"00000000.copy": b"x"})
    assert fetching.fetch(home, node.source, with_checkpoints=True).num_files == 0
    monkeypatch.setattr(publishing, "_MOST_LISTED_BYTES", 1000)
    with pytest.raises(OSError, match="more was published than is read"):
        fetching.fetch(home, node.source)


def test_more_than_a_run_may_have_stays_until_it_is_asked_for(node, home, monkeypatch):
    monkeypatch.setattr(fetching, "_MOST_BYTES", 3 * LARGE)
    node(**{f"samples-{number}": os.urandom(LARGE) for number in range(5)})
    assert fetching.fetch(home, node.source)[:2] == (3, 2)


def test_a_verdict_that_was_written_here_stays(node, home):
    verdict = {"kind": "done", "state": "done", "message": "all well", "exit_code_of_run": 0}
    node(**{"verdict.json": json.dumps(verdict).encode()})
    fetching.fetch(home, node.source)
    assert home.read_verdict().message == "all well"
    other = Run.create(home.path.parent, "other")
    files.write_json(other.verdict_file, verdict | {"message": "cancelled"})
    fetching.fetch(other, node.source)
    assert other.read_verdict().message == "cancelled"


@pytest.mark.parametrize("size", [LARGE, 16 * LARGE], ids=["same size", "larger"])
def test_data_that_is_not_what_was_published_is_refused_and_keeps_nothing_else_away(
    node, home, tmp_path, size
):
    node(checkpoints__a=os.urandom(LARGE), **{"verdict.json": b"{}"})
    (copy,) = (path for path in (tmp_path / "output").rglob("*.copy") if path.stat().st_size > 2)
    copy.write_bytes(bytes(size))
    node.source.most_bytes = 2 * LARGE  # no more than that is taken
    with pytest.raises(OSError, match="not what was written"):
        fetching.fetch(home, node.source, with_checkpoints=True)
    assert list(home.checkpoints_folder.iterdir()) == []
    assert home.verdict_file.exists()


def test_large_files_stay_where_they_are_until_they_are_asked_for(node, home, monkeypatch):
    monkeypatch.setattr(fetching, "_MOST_UNASKED_BYTES", LARGE - 1)
    node(samples=bytes(LARGE), events__a=b"1")
    assert fetching.fetch(home, node.source)[:] == (1, 1, LARGE)
    assert fetching.fetch(home, node.source, with_checkpoints=True).num_files == 1
    assert (home.path / "samples").stat().st_size == LARGE


@pytest.mark.parametrize(
    "odd",
    [{"copy": "../../../secret"}, {"copy": "/etc/passwd"}, {"copy": ""}, {"size": -1}],
    ids=lambda odd: " ".join(map(str, odd.values())),
)
def test_a_listing_that_no_node_writes_is_none(node, home, tmp_path, write_listing, odd):
    (tmp_path / "secret").write_bytes(b"secret")
    write_listing(
        entry_of("events/odd", b"secret", "00000000.copy", **odd),
        copies={"00000000.copy": b"secret"},
    )
    assert fetching.fetch(home, node.source).num_files == 0
    assert list(home.events_folder.iterdir()) == []


def test_a_run_of_another_user_is_left_alone(node, home, monkeypatch):
    monkeypatch.setattr(fetching, "is_own", lambda _: False)
    with pytest.raises(RunDirectoryError, match="another user"):
        fetching.fetch(home, node.source)
