"""Versions that a run was submitted with."""

from hpcdist.base.version import locked


def test_a_lock_of_uv_is_known_by_its_content_from_folders_below(tmp_path):
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    lock = tmp_path / "project" / "uv.lock"
    lock.write_text("version = 1\n")
    first = locked(below)
    assert [*first] == ["uv.lock"]
    lock.write_text("version = 2\n")
    assert locked(below) != first
