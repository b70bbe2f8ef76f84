"""Run directories on a bad storage: what is published, and what readers make of it."""

import json
import os

import msgspec
import pytest

from hpcdist.runs.publishing import (
    Entry,
    FolderSource,
    Listing,
    Publisher,
    bring_file,
    files_of,
    read_starts,
)

LARGE = 3 << 20


class Clock:
    def __init__(self):
        self.time_s = 1.8e9

    def __call__(self):
        return self.time_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def node(tmp_path, clock):
    """Make a node with a run directory of its own; all publish into one folder."""

    class Node:
        def __init__(self, name, number=0, **options):
            self.run = tmp_path / name
            self.run.mkdir(exist_ok=True)
            self.output = tmp_path / "output"
            self.output.mkdir(exist_ok=True)
            clock.time_s += 10
            self.publisher = Publisher(self.run, self.output, node=number, now=clock, **options)

        def write(self, path, content, mode="wb"):
            file = self.run / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open(mode) as opened:
                opened.write(content)
            os.utime(file, (clock.time_s, clock.time_s))
            clock.time_s += 10  # it settles

        def publish(self):
            self.publisher.publish()

    return Node


def read(folder):
    return files_of(read_starts(FolderSource(folder)))


def contents(folder):
    return {
        path: (folder / place / entry.copy).read_bytes()
        for path, (place, entry) in read(folder).items()
    }


def test_files_grow_are_replaced_and_go_with_names_that_are_written_once(node, tmp_path):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.write("checkpoints/step-00000001.pt", os.urandom(LARGE))
    one.write("attempts/00000/begin.json", b"{}")
    one.publish()
    written = {path: path.read_bytes() for path in one.output.rglob("*") if path.is_file()}
    one.write("events/rank-00000.jsonl", b"2\n", "ab")
    (one.run / "checkpoints/step-00000001.pt").unlink()
    newest = os.urandom(LARGE)
    one.write("checkpoints/step-00000002.pt", newest)
    one.write("spec.json", b"not mine to write")
    one.write("launch/meeting.json", b"secret")
    one.write("logs/.aside", b"half")
    one.publish()
    assert all(path.read_bytes() == content for path, content in written.items() if path.exists())
    found = read(one.output)
    assert set(found) == {
        "events/rank-00000.jsonl",
        "checkpoints/step-00000002.pt",
        "attempts/00000/begin.json",
    }
    home = tmp_path / "home"
    home.mkdir()
    for file in found.values():
        bring_file(FolderSource(one.output), home, file)
    assert (home / "events/rank-00000.jsonl").read_bytes() == b"1\n2\n"
    assert (home / "checkpoints/step-00000002.pt").read_bytes() == newest
    assert len(list(one.output.rglob("*.copy"))) == 3


def test_checkpoints_that_are_soon_replaced_are_published_all_the_same(node, clock):
    one = node("a")
    for step in (1, 2):
        one.write(f"checkpoints/step-0000000{step}.pt", b"whole")
        one.write("checkpoints/of-a-script.pt", b"perhaps half")
        clock.time_s -= 20.0
        assert one.publisher.is_urgent()
        one.publish()
        assert contents(one.output) == {f"checkpoints/step-0000000{step}.pt": b"whole"}
        (one.run / f"checkpoints/step-0000000{step}.pt").unlink()


def test_while_a_listing_is_torn_the_one_before_counts(node):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.publish()
    one.write("errors/rank-00000.json", b"{}")
    one.publish()
    torn = max(one.output.rglob("*.json"))
    torn.write_bytes(torn.read_bytes()[:-3])
    assert contents(one.output) == {"events/rank-00000.jsonl": b"1\n"}
    one.write("verdict.json", b"{}")
    one.publish()
    assert contents(one.output).keys() == {
        *("events/rank-00000.jsonl", "errors/rank-00000.json", "verdict.json")
    }


def test_a_mount_that_fails_for_a_while_costs_nothing(node, monkeypatch):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.write("checkpoints/step-00000001.pt", b"whole")
    opened = type(one.run).open

    def fail(path, mode="r", *rest):
        if path.suffix == ".json":
            raise OSError(5, "Input/output error")
        return opened(path, mode, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(type(one.run), "open", fail)
        with pytest.raises(OSError, match="Input/output"):
            one.publish()
    assert contents(one.output) == {}
    one.publish()
    assert len(contents(one.output)) == 2


def test_what_a_node_writes_after_its_next_start_does_not_count(node):
    old = node("old")
    old.write("checkpoints/a.json", b"1")
    old.publish()
    new = node("new")
    new.write("checkpoints/a.json", b"2")
    new.publish()
    old.write("checkpoints/a.json", b"3")
    old.write("verdict.json", json.dumps({"kind": "agent_lost"}).encode())
    old.publish()
    assert contents(old.output) == {"checkpoints/a.json": b"2"}
    new.write("verdict.json", b"new")
    new.publish()
    assert contents(old.output)["verdict.json"] == b"new"


def test_another_nodes_verdict_counts_where_the_first_node_left_none(node):
    node("first")
    other = node("other", number=1)
    other.write("verdict.json", b"lost")
    other.publish()
    assert contents(other.output) == {"verdict.json": b"lost"}
    node("first again")
    assert contents(other.output) == {}


def test_a_file_that_is_being_written_is_published_when_it_has_settled(node, clock):
    one = node("a")
    one.write("state.bin", b"1")
    os.utime(one.run / "state.bin", (clock.time_s, clock.time_s))
    assert not one.publisher.is_urgent()
    one.publish()
    assert contents(one.output) == {}
    one.publisher.publish(is_final=True)
    assert contents(one.output) == {"state.bin": b"1"}


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../../x", "spec.json", "submitit/x", ".ssh/x", "a//b", "", "a/./b", "."],
)
def test_a_path_that_leads_out_or_to_what_was_submitted_is_passed_over(path, tmp_path):
    folder = tmp_path / "node-00000" / "1763859000123456789-9f31c2aa"
    folder.mkdir(parents=True)
    entries = [
        Entry(path=name, copy=f"0000000{number}.copy", size=1, sha256="", time_s=1.0)
        for number, name in enumerate((path, "logs/good"))
    ]
    listing = Listing(time_s=1.0, files=entries, gone=[])
    (folder / "00000002.json").write_bytes(msgspec.json.encode(listing))
    assert read(tmp_path).keys() == {"logs/good"}


def test_a_link_in_the_place_of_a_folder_is_not_followed(node, tmp_path):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.publish()
    (file,) = read(one.output).values()
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "events").symlink_to(elsewhere)
    with pytest.raises(OSError, match="link"):
        bring_file(FolderSource(one.output), home, file)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("behind_s", [0, 3600])
def test_a_start_counts_as_the_newest_though_its_clock_is_behind(node, clock, tmp_path, behind_s):
    first = node("a")
    first.write("checkpoints/newest", b"1")
    first.publish()
    newest_s = max(one.listing.time_s for one in read_starts(FolderSource(tmp_path / "output")))
    assert newest_s == clock.time_s
    clock.time_s -= behind_s
    second = node("b", after_s=newest_s)
    second.write("checkpoints/newest", b"2")
    second.publish()
    first.write("checkpoints/newest", b"of a node that is gone")
    clock.time_s += behind_s
    first.publish()
    assert contents(tmp_path / "output") == {"checkpoints/newest": b"2"}
