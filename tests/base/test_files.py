"""Small files: whole or not at all, private, and written once where that is asked."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from hpcdist.base import files


def test_a_file_is_written_whole_and_private_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"k": [1, "\u00e9\x7f\x9b"]})
    assert path.read_text() == '{\n  "k": [\n    1,\n    "\\u00e9\\u007f\\u009b"\n  ]\n}\n'
    assert files.read_json(path) == {"k": [1, "\u00e9\x7f\x9b"]}
    assert path.stat().st_mode & 0o777 == files.PRIVATE_FILE
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(path, "\ud800")
    assert files.read_json(path)
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("has_links", [True, False], ids=["hard links", "no hard links"])
def test_only_one_of_many_writers_wins_and_its_content_stays(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "not permitted")))
    path = tmp_path / "verdict.json"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: files.write_once(path, str(number)), range(32)))
    assert won.count(True) == 1
    assert path.read_text() == str(won.index(True))
    assert path.stat().st_mode & 0o777 == files.PRIVATE_FILE
    assert os.listdir(tmp_path) == ["verdict.json"]


def test_a_torn_file_reads_as_none(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"", b"{", b"\xff\xfe"):
        path.write_bytes(content)
        assert files.read_json(path) is None
    assert files.read_json(tmp_path / "missing.json") is None
    assert files.read_json(tmp_path) is None


def test_names_that_are_not_utf8_survive_as_json_and_as_text(tmp_path):
    name = os.fsdecode(b"a\xff.py")
    files.write_json(tmp_path / "a.json", {"script": name})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["script"] == name
    files.write_whole(tmp_path / "a.sh", f"cat {name}")
    assert (tmp_path / "a.sh").read_bytes() == b"cat a\xff.py"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (
            lambda path: (path.touch(), os.truncate(path, 2_000_000_000)),
            "it has 2 GB, and no more than 1 MB are read",
        ),
    ],
    ids=["a pipe", "a device", "a sparse file"],
)
def test_only_regular_files_of_a_limited_size_are_read(tmp_path, make, why):
    path = tmp_path / "spec.json"
    make(path)
    with pytest.raises(OSError, match=why) as caught:
        files.read_bytes(path, most_bytes=1_000_000)
    assert caught.value.strerror == why
    assert caught.value.filename == str(path)


def test_a_folder_with_too_many_entries_is_not_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ENTRIES", 1)
    (tmp_path / "a").touch()
    assert files.list_names(tmp_path) == ["a"]
    (tmp_path / "b").touch()
    with pytest.raises(OSError, match="it holds more than 1 entries"):
        files.list_names(tmp_path)
