"""Run directories that are brought home."""

import hashlib
import io
import json
import os
from pathlib import Path

import pytest

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.runs import fetching, parcels
from hpcdist.runs.parcels import FolderSource
from hpcdist.runs.publishing import Publisher
from hpcdist.runs.run import Run, _Within

LARGE = 2 << 20
NOT_FOR_NODES = (
    *("../escaped", "spec.json", "parcels/marks.json", "submitit/x", "remote.json", "sweep.json"),
    *("figures.msgpack", "cancel", "launch/cancel", "launch/requests", "launch/missed.json"),
    *("launch/answer-0123456789abcdef.json", "function.pkl"),
)
FOLDERS = ("attempts", "checkpoints", "errors", "events", "logs", "traces")


class Elsewhere(FolderSource):
    """A source that counts what is read, and may break."""

    def __init__(self, folder):
        super().__init__(folder)
        self.read_names, self.breaks_at, self.most_bytes = [], None, None

    def read(self, name):
        if self.breaks_at == len(self.read_names):
            raise TimeoutError(110, "no answer")
        self.read_names.append(name)
        return super().read(name)

    def copy(self, name, to):
        counted = io.BytesIO()
        try:
            super().copy(name, to if self.most_bytes is None else Both(to, counted))
        finally:
            assert counted.tell() <= (self.most_bytes or 0)


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
    assert fetching.fetch(home, node.source).num_files == 2
    assert len(node.source.read_names) == len(set(node.source.read_names)) == 3
    node(events__b=b"22")
    assert fetching.fetch(home, node.source).num_files == 1
    assert len(node.source.read_names) == 4
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


def test_nothing_replaces_what_was_submitted_or_leads_out(node, home, tmp_path):
    spec = home.spec_file.read_bytes()
    entries = [parcels.Entry(path=path, size=1) for path in (*NOT_FOR_NODES, "events/good")]
    folder = tmp_path / "output" / "node-00000" / "1999999999999999999-00000000"
    folder.mkdir()
    (folder / "00000000.parcel").write_bytes(parcels.encode(2e9, entries, [b"x"] * len(entries)))
    odd = tmp_path / "output" / "node-00000" / ".." / "node-00000" / "x"
    odd.mkdir()
    (odd / "00000000.parcel").write_bytes(b"x")
    assert fetching.fetch(home, node.source).num_files == 1
    assert home.spec_file.read_bytes() == spec
    assert (home.events_folder / "good").read_bytes() == b"x"
    assert not (home.path.parent / "escaped").exists()
    theirs = [home.path / path for path in NOT_FOR_NODES]
    assert not [path for path in theirs if path.exists() and path.read_bytes() == b"x"]


def test_every_file_that_hpcdist_reads_of_a_run_is_a_nodes_or_refused():
    places = {
        str(getattr(Run(Path()), name)) for name, at in vars(Run).items() if type(at) is _Within
    }
    of_nodes = {"verdict.json", *FOLDERS}
    assert {place for place in places if parcels.is_wanted(place)} == of_nodes


def test_parcels_are_limited_in_all_and_a_file_beside_them_counts_once(
    node, home, tmp_path, monkeypatch
):
    node(samples=bytes(LARGE))
    folder = next((tmp_path / "output" / "node-00000").iterdir())
    (data,) = folder.glob("*.data")
    digest = hashlib.sha256(bytes(LARGE)).hexdigest()
    entries = [
        parcels.Entry(path=f"events/{number}", size=LARGE, data=data.name, sha256=digest)
        for number in range(50)
    ]
    (folder / "00000009.parcel").write_bytes(parcels.encode(2e9, entries, []))
    assert fetching.fetch(home, node.source, with_checkpoints=True).num_files == 0
    monkeypatch.setattr(fetching, "_MOST_BYTES", 1000)
    with pytest.raises(RunDirectoryError, match=r"3 parcels with .* and no more than"):
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
    (data,) = (tmp_path / "output").rglob("*.data")
    data.write_bytes(bytes(size))
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
    [
        {"data": "../../../secret", "size": 6},
        {"data": "/etc/passwd"},
        {"data": ""},
        {"offset": -1},
        {"size": -1},
    ],
    ids=lambda odd: " ".join(map(str, odd.values())),
)
def test_a_parcel_that_no_node_writes_is_none(node, home, tmp_path, odd):
    (tmp_path / "secret").write_bytes(b"secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    entry = parcels.Entry(path="events/odd", sha256=digest, **odd)
    folder = tmp_path / "output" / "node-00000" / "1999999999999999999-00000000"
    folder.mkdir()
    (folder / "00000000.parcel").write_bytes(parcels.encode(2e9, [entry], []))
    assert fetching.fetch(home, node.source).num_files == 0
    assert list(home.events_folder.iterdir()) == []


def test_a_run_of_another_user_is_left_alone(node, home, monkeypatch):
    monkeypatch.setattr(fetching, "is_own", lambda _: False)
    with pytest.raises(RunDirectoryError, match="another user"):
        fetching.fetch(home, node.source)
