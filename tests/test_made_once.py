"""What the processes of the tests share: were it made twice or by halves, they would not agree."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from made_once import made_once


def test_of_those_who_ask_at_one_time_one_makes_it_and_all_get_it_whole(tmp_path):
    fills, together = [], Barrier(4)

    def fill(folder):
        fills.append(folder)
        (folder / "half").touch()
        (folder / "whole").touch()

    def ask(_):
        together.wait(10)
        return made_once(tmp_path, "it", fill)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(ask, range(4)))
    assert len(fills) == 1
    assert folders == {tmp_path / "it"}
    assert {path.name for path in (tmp_path / "it").iterdir()} == {"half", "whole"}


def test_what_could_not_be_made_is_made_by_the_next_to_ask(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once(tmp_path, "it", fail)
    folder = made_once(tmp_path, "it", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
