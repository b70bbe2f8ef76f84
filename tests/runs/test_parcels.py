"""Run directories in parcels: what is published, and what readers make of it."""

import json
import os

import pytest

from hpcdist.runs import parcels
from hpcdist.runs.parcels import FolderSource
from hpcdist.runs.publishing import Publisher

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
    source = FolderSource(folder)
    return parcels.files_of(parcels.read_starts(source, source.sizes()))


def contents(folder):
    return {
        path: b"".join(piece.content for piece in pieces) for path, pieces in read(folder).items()
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
    marks = {}
    for _ in range(2):  # the second time all is there
        for path, pieces in found.items():
            marks[path] = parcels.write_file(FolderSource(one.output), home, path, pieces, marks)
    assert (home / "events/rank-00000.jsonl").read_bytes() == b"1\n2\n"
    assert (home / "checkpoints/step-00000002.pt").read_bytes() == newest
    assert len(list(one.output.rglob("*.data"))) == 1


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


def test_a_torn_parcel_costs_what_it_brought_and_no_more(node):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.publish()
    one.write("events/rank-00000.jsonl", b"2\n", "ab")
    one.write("errors/rank-00000.json", b"{}")
    one.publish()
    one.write("events/rank-00000.jsonl", b"3\n", "ab")
    one.write("verdict.json", b"{}")
    one.publish()
    torn = sorted(one.output.rglob("*.parcel"))[2]
    torn.write_bytes(torn.read_bytes()[:-3])
    assert contents(one.output) == {"events/rank-00000.jsonl": b"1\n", "verdict.json": b"{}"}


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
    entries = [parcels.Entry(path=path, size=1), parcels.Entry(path="logs/good", size=1)]
    (folder / "00000000.parcel").write_bytes(parcels.encode(1.0, entries, [b"x", b"y"]))
    assert contents(tmp_path) == {"logs/good": b"y"}


def test_a_link_in_the_place_of_a_folder_is_not_followed(node, tmp_path):
    one = node("a")
    one.write("events/rank-00000.jsonl", b"1\n")
    one.publish()
    (pieces,) = read(one.output).values()
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "events").symlink_to(elsewhere)
    with pytest.raises(OSError, match="link"):
        parcels.write_file(FolderSource(one.output), home, "events/rank-00000.jsonl", pieces, {})
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("behind_s", [0, 3600])
def test_a_start_counts_as_the_newest_though_its_clock_is_behind(node, clock, tmp_path, behind_s):
    first = node("a")
    first.write("checkpoints/newest", b"1")
    first.publish()
    source = FolderSource(tmp_path / "output")
    newest_s = parcels.newest_time_s(parcels.read_starts(source, source.sizes()))
    assert newest_s == clock.time_s
    clock.time_s -= behind_s
    second = node("b", after_s=newest_s)
    second.write("checkpoints/newest", b"2")
    second.publish()
    first.write("checkpoints/newest", b"of a node that is gone")
    clock.time_s += behind_s
    first.publish()
    assert contents(tmp_path / "output") == {"checkpoints/newest": b"2"}
