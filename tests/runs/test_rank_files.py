"""The files of ranks and nodes: the names that are listed, brought and followed, and no others."""

from hpcdist.base import files
from hpcdist.runs.run import Run


def test_a_folder_with_too_many_files_is_refused_and_not_held_in_memory(monkeypatch, tmp_path):
    run = Run.create(tmp_path, "ddp")
    monkeypatch.setattr(files, "MOST_ENTRIES", 5)
    for rank in range(6):
        run.log_file(rank).write_text("")
    assert run.log_files() == []
