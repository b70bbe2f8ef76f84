"""Runs whose nodes share no files with the user: what is published, and what is brought home."""

import json
import os
from pathlib import Path

import pytest

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.runs.paths import RunPaths, _Within
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure import workspace as azure_files
from hpcdist.schedulers.azure.node import is_wanted, publish, scan
from hpcdist.schedulers.azure.workspace import Stored, fetch

LARGE = 2 << 20
NOT_FOR_NODES = (
    *("spec.json", "submitit/x", "remote.json", "sweep.json", "figures.msgpack", "cancel"),
    *("launch/cancel", "launch/request.json", "launch/missed.json", "function.pkl"),
    "launch/answer-0123456789abcdef.json",
)
LEADS_OUT = ("../escaped", "/etc/x", "a/../../x", ".ssh/x", "a//b", "", "a/./b", ".")
FOLDERS = ("attempts", "checkpoints", "events", "logs", "traces")


class Storage:
    """A folder in the place of a storage; it counts what is read, and may break."""

    def __init__(self, folder):
        self.folder = folder
        self.odd, self.copied, self.breaks_at = [], [], None

    def list_files(self):
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            status = path.stat()
            name = path.relative_to(self.folder).as_posix()
            yield Stored(name, status.st_size, int(status.st_mtime))
        yield from self.odd

    def copy(self, name, to, *, size):
        if self.breaks_at == len(self.copied):
            raise TimeoutError(110, "no answer")
        self.copied.append(name)
        to.write((self.folder / name).read_bytes()[:size])


class Node:
    def __init__(self, folder, storage):
        self.run, self.output = folder, storage.folder
        self.run.mkdir()
        self.published = {}

    def write(self, path, content, mode="wb"):
        file = self.run / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open(mode) as opened:
            opened.write(content)

    def publish(self):
        publish(self.run, self.output, self.published)


@pytest.fixture
def storage(tmp_path):
    (tmp_path / "output").mkdir()
    return Storage(tmp_path / "output")


@pytest.fixture
def node(tmp_path, storage):
    return Node(tmp_path / "node", storage)


@pytest.fixture
def home(tmp_path):
    run = Run.create(tmp_path / "runs", "train")
    run.spec_file.write_text('{"created_s": 1.0, "job": {"name": "mine"}}')
    return run


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_that_grow_change_and_go_are_published_under_their_names(node):
    node.write("events/rank-00000.jsonl", b"1\n")
    node.write("checkpoints/step-00000001.pt", os.urandom(LARGE))
    node.write("attempts/00000/begin.json", b"{}")
    node.publish()
    node.write("events/rank-00000.jsonl", b"2\n", "ab")
    (node.run / "checkpoints/step-00000001.pt").unlink()
    newest = os.urandom(LARGE)
    node.write("checkpoints/step-00000002.pt", newest)
    for name in ("spec.json", "launch/meeting.json", "logs/.aside"):
        node.write(name, b"not for others")
    (node.run / "link").symlink_to("/etc/passwd")
    (node.run / "folder").symlink_to(node.run / "events")
    node.publish()
    assert contents(node.output) == {
        "events/rank-00000.jsonl": b"1\n2\n",
        "checkpoints/step-00000002.pt": newest,
        "attempts/00000/begin.json": b"{}",
    }


def test_what_was_there_at_the_start_is_not_published_again_and_removed_when_it_goes(
    tmp_path, storage
):
    for folder in (tmp_path / "node", storage.folder):
        (folder / "checkpoints").mkdir(parents=True)
        for step in (1, 2):
            (folder / f"checkpoints/step-0000000{step}.pt").write_bytes(b"whole")
    os.utime(storage.folder / "checkpoints/step-00000002.pt", (5, 5))
    published = scan(tmp_path / "node")
    (tmp_path / "node/checkpoints/step-00000001.pt").unlink()
    publish(tmp_path / "node", storage.folder, published)
    (left,) = storage.list_files()
    assert left == Stored("checkpoints/step-00000002.pt", 5, 5)


def test_a_storage_that_fails_for_a_while_costs_nothing(node, monkeypatch):
    node.write("checkpoints/step-00000001.pt", b"one")
    node.publish()
    (node.run / "checkpoints/step-00000001.pt").unlink()
    node.write("checkpoints/step-00000002.pt", b"two")

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="Input/output"):
            node.publish()
    assert contents(node.output) == {"checkpoints/step-00000001.pt": b"one"}
    node.publish()
    assert contents(node.output) == {"checkpoints/step-00000002.pt": b"two"}


def test_the_list_of_tensors_of_a_checkpoint_in_parts_is_published_with_it(node):
    node.write("checkpoints/step-00000001.dcp/.metadata", b"x")
    node.write("checkpoints/step-00000001.dcp/..metadata.0a1b", b"half")
    node.publish()
    assert contents(node.output).keys() == {"checkpoints/step-00000001.dcp/.metadata"}


def test_a_link_in_the_place_of_a_folder_is_not_followed(node, storage, home, tmp_path):
    node.write("own/rank-00000.jsonl", b"1\n")
    node.publish()
    (tmp_path / "elsewhere").mkdir()
    (home.path / "own").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        fetch(home, storage)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_only_what_is_new_is_brought_and_an_interrupted_fetch_goes_on(node, storage, home):
    node.write("events/a", b"1")
    node.write("events/b", b"2")
    node.publish()
    storage.breaks_at = 1
    with pytest.raises(TimeoutError):
        fetch(home, storage)
    storage.breaks_at = None
    assert fetch(home, storage) == 1
    assert storage.copied == ["events/a", "events/b"]
    node.write("events/b", b"22")
    node.publish()
    assert fetch(home, storage) == 1
    assert fetch(home, storage) == 0
    assert (home.events_folder / "b").read_bytes() == b"22"
    assert (home.events_folder / "b").stat().st_mode & 0o777 == 0o600


def test_checkpoints_are_brought_where_that_is_asked_for_and_pickles_never(node, storage, home):
    content = os.urandom(LARGE)
    node.write("checkpoints/a", content)
    node.write("results/rank", b"pickle")
    node.publish()
    assert fetch(home, storage) == 0
    assert fetch(home, storage, with_checkpoints=True) == 1
    assert (home.checkpoints_folder / "a").read_bytes() == content
    assert not (home.path / "results").exists()


def test_nothing_replaces_what_was_submitted_or_leads_out(home, storage):
    spec = home.spec_file.read_bytes()
    for path in (*NOT_FOR_NODES, "events/good"):
        place = storage.folder / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"x")
    (storage.folder.parent / "escaped").write_bytes(b"x")
    storage.odd = [Stored(path, 1, 1) for path in LEADS_OUT]
    assert fetch(home, storage, with_checkpoints=True) == 1
    assert storage.copied == ["events/good"]
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


def test_more_files_than_a_folder_may_have_are_refused(home, storage, monkeypatch):
    monkeypatch.setattr(files, "MOST_ENTRIES", 10)
    storage.odd = [Stored(f"events/{number}", 1, 1) for number in range(11)]
    with pytest.raises(OSError, match="more was published than is read"):
        fetch(home, storage)


def test_large_files_stay_until_they_are_asked_for(node, storage, home, monkeypatch):
    monkeypatch.setattr(azure_files, "_MOST_BYTES", LARGE - 1)
    node.write("samples", bytes(LARGE))
    node.publish()
    assert fetch(home, storage) == 0
    assert fetch(home, storage, with_checkpoints=True) == 1


def test_no_more_is_brought_of_a_file_than_its_size_was(node, storage, home):
    node.write("events/a", b"12345")
    node.publish()
    listed = list(storage.list_files())
    storage.list_files = lambda: listed
    (storage.folder / "events/a").write_bytes(bytes(LARGE))
    fetch(home, storage)
    assert (home.events_folder / "a").stat().st_size == 5


def test_a_verdict_that_was_written_here_stays(node, storage, home):
    verdict = {"kind": "done", "state": "done", "message": "all well", "exit_code_of_run": 0}
    node.write("verdict.json", json.dumps(verdict).encode())
    node.publish()
    fetch(home, storage)
    assert home.read_verdict().message == "all well"
    other = Run.create(home.path.parent, "other")
    files.write_json(other.verdict_file, verdict | {"message": "cancelled"})
    fetch(other, storage)
    assert other.read_verdict().message == "cancelled"


def test_a_run_of_another_user_is_left_alone(storage, home, monkeypatch):
    monkeypatch.setattr(azure_files, "is_own", lambda _: False)
    with pytest.raises(RunDirectoryError, match="another user"):
        fetch(home, storage)
