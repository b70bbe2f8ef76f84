"""Runs whose nodes share no files with the user: what is published, and what is brought home."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.runs.paths import RunPaths, _Within
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure import workspace as azure_files
from hpcdist.schedulers.azure.node import is_wanted, publish
from hpcdist.schedulers.azure.workspace import Stored, fetch

LARGE = 2 << 20
NOT_FOR_NODES = (
    *("spec.json", "submitit/x", "remote.json", "sweep.json", "figures.msgpack", "cancel"),
    *("launch/cancel", "launch/request.json", "launch/missed.json", "function.pkl"),
    "launch/answer-0123456789abcdef.json",
)
LEADS_OUT = ("../escaped", "/etc/x", "a/../../x", ".ssh/x", "a//b", "", "a/./b", ".")


class Storage:
    """A folder in the place of a storage, to which a node publishes; it may break."""

    def __init__(self, folder):
        self.node, self.folder, self.published = folder / "node", folder / "output", {}
        for one in (self.node, self.folder):
            one.mkdir()
        self.odd, self.copied, self.breaks_at = [], [], None

    def publish(self, **contents):
        """Publish what a node has, and these files, as it does."""
        for path, content in contents.items():
            file = self.node / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        publish(self.node, self.folder, self.published)

    def contents(self):
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}

    def list_files(self):
        for name in sorted(self.contents()):
            status = (self.folder / name).stat()
            yield Stored(name, status.st_size, int(status.st_mtime))
        yield from self.odd

    def copy(self, name, to, *, size):
        if self.breaks_at == len(self.copied):
            raise TimeoutError(110, "no answer")
        self.copied.append(name)
        to.write((self.folder / name).read_bytes()[:size])


@pytest.fixture
def storage(tmp_path):
    return Storage(tmp_path)


@pytest.fixture
def home(tmp_path):
    run = Run.create(tmp_path / "runs", "train")
    files.write_json(run.spec_file, {"id": run.id})
    return run


def test_files_that_grow_change_and_go_are_published_under_their_names(storage):
    first, newest = "checkpoints/step-00000001.pt", os.urandom(LARGE)
    begin = {"attempts/00000/begin.json": b"{}"}
    storage.publish(**{"events/rank-0.jsonl": b"1\n", first: os.urandom(LARGE), **begin})
    (storage.node / first).unlink()
    (storage.node / "link").symlink_to("/etc/passwd")
    (storage.node / "folder").symlink_to(storage.node / "events")
    not_for_others = ("spec.json", "launch/meeting.json", "logs/.aside")
    changed = {
        "events/rank-0.jsonl": b"1\n2\n",
        "checkpoints/step-00000002.pt": newest,
        "checkpoints/step-00000001.dcp/.metadata": b"x",  # the list of its tensors
    }
    half = {"checkpoints/step-00000001.dcp/..metadata.0a1b": b"half"}
    storage.publish(**changed, **half, **dict.fromkeys(not_for_others, b"x"))
    assert storage.contents() == changed | begin


def test_a_storage_that_fails_for_a_while_costs_nothing(storage, monkeypatch):
    one, two = (f"checkpoints/step-0000000{step}.pt" for step in (1, 2))
    storage.publish(**{one: b"one"})
    (storage.node / one).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            storage.publish(**{two: b"two"})
    assert storage.contents() == {one: b"one"}
    storage.publish()
    assert storage.contents() == {two: b"two"}


def test_only_what_is_new_is_brought_and_an_interrupted_fetch_goes_on(storage, home):
    storage.publish(**{"events/a": b"1", "events/b": b"2"})
    storage.breaks_at = 1
    with pytest.raises(TimeoutError):
        fetch(home, storage)
    storage.breaks_at = None
    assert fetch(home, storage) == 1
    assert storage.copied == ["events/a", "events/b"]
    storage.publish(**{"events/b": b"22"})
    assert (fetch(home, storage), fetch(home, storage)) == (1, 0)
    assert (home.events_folder / "b").read_bytes() == b"22"
    assert (home.events_folder / "b").stat().st_mode & 0o777 == 0o600
    home.verdict_file.write_text("one that was written here stays")
    storage.publish(**{"verdict.json": b"{}"})
    assert fetch(home, storage) == 0


def test_checkpoints_and_large_files_are_brought_where_that_is_asked_for_and_pickles_never(
    storage, home, monkeypatch
):
    monkeypatch.setattr(azure_files, "_MOST_BYTES", LARGE - 1)
    storage.publish(**{"checkpoints/a": b"a", "samples": bytes(LARGE), "results/rank": b"pickle"})
    assert fetch(home, storage) == 0
    assert fetch(home, storage, with_checkpoints=True) == 2
    assert (home.checkpoints_folder / "a").read_bytes() == b"a"
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
    of_nodes = {"attempts", "checkpoints", "events", "logs", "notify.log", "traces", "verdict.json"}
    assert {place for place in places if is_wanted(place)} == of_nodes


def test_no_more_is_brought_than_was_listed_and_than_a_folder_may_have(storage, home, monkeypatch):
    storage.publish(**{"events/a": b"12345"})
    listed = list(storage.list_files())
    monkeypatch.setattr(storage, "list_files", lambda: listed)
    (storage.folder / "events/a").write_bytes(bytes(LARGE))
    fetch(home, storage)
    assert (home.events_folder / "a").stat().st_size == 5
    monkeypatch.setattr(files, "MOST_ENTRIES", 10)
    listed += [Stored(f"events/{number}", 1, 1) for number in range(10)]
    with pytest.raises(OSError, match="more was published than is read"):
        fetch(home, storage)


def test_nothing_is_written_through_a_link_or_into_a_run_of_another_user(
    storage, home, tmp_path, monkeypatch
):
    storage.publish(**{"own/rank-00000.jsonl": b"1\n"})
    (tmp_path / "elsewhere").mkdir()
    (home.path / "own").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        fetch(home, storage)
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.setattr(azure_files, "is_own", lambda _: False)
    with pytest.raises(RunDirectoryError, match="another user"):
        fetch(home, storage)
