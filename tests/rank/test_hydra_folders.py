"""Hydra's scripts: each rank writes into a folder of its own, unless the user names one."""

import pytest

from hpcdist.workloads.own_code import note_on_multirun

APP = """
import os

import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base=None, config_path=None)
def main(config):
    print(HydraConfig.get().runtime.output_dir)


main()
import sys
sys.argv.append(f"hydra.run.dir={os.environ['HPCDIST_RUN_DIR']}/mine")
main()
"""


def test_ranks_write_apart_from_each_other_and_where_the_user_says(launch, write_script):
    pytest.importorskip("hydra")
    launched = launch(write_script(APP), gpus=2)
    assert launched.verdict().kind == "done", launched.log(0)
    for rank in (0, 1):
        own, named = launched.log(rank).split()
        assert own == str(launched.run.path / "hydra" / f"rank-{rank:05d}")
        assert named == str(launched.run.path / "mine")
        assert (launched.run.path / "hydra" / f"rank-{rank:05d}" / ".hydra/config.yaml").exists()


def test_a_multirun_of_several_ranks_is_noted(write_script):
    path = write_script(APP)
    assert "--sweep" in (note_on_multirun(path, ["-m", "lr=1,2"], num_ranks=2) or "")
    assert note_on_multirun(path, ["-m", "lr=1,2"], num_ranks=1) is None
    assert note_on_multirun(path, ["lr=1"], num_ranks=2) is None
    other = write_script("print()", "other.py")
    assert note_on_multirun(other, ["-m"], num_ranks=2) is None
