"""The files of ranks and nodes: the names that are listed, brought and followed, and no others."""

import pytest

from hpcdist.base import files
from hpcdist.runs.run import Run


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("logs/rank-00007.log", True),
        ("logs/rank-123456.attempt-1.log", True),
        ("logs/../rank-00007.log", False),
        ("logs/00500/rank-00612.log", False),
        ("events/rank-00007.log", False),
        ("rank-00007.log", False),
    ],
)
def test_a_verdict_names_logs_of_ranks_only(tmp_path, name, is_log):
    assert (Run.create(tmp_path, "ddp").named_file(name) is not None) == is_log


def test_a_folder_with_too_many_files_is_refused_and_not_held_in_memory(monkeypatch, tmp_path):
    run = Run.create(tmp_path, "ddp")
    monkeypatch.setattr(files, "MOST_ENTRIES", 5)
    for rank in range(6):
        run.log_file(rank).write_text("")
    assert run.log_files() == []
