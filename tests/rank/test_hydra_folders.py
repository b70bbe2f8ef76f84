"""Hydra's scripts: each rank writes into a folder of its own, unless the user names one."""

import pytest

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
