"""Programs that start their ranks themselves, as by mp.spawn, and would wait forever."""

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job
from hpcdist.workloads import load_workload

COURSE = """
import argparse, os
import torch.distributed as dist
import torch.multiprocessing as mp
def main():
    args = argparse.Namespace(gpus=2, nodes=2, nr=0)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "10.57.23.164", "8888"
    mp.spawn(train, nprocs=args.gpus, args=(args,))
def train(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group("nccl", init_method="env://", world_size=4, rank=rank)
main()
"""


@pytest.mark.parametrize(
    ("replaced", "call"),
    [
        ({}, "main.py, line 8 starts ranks by mp.spawn,"),
        ({"mp.spawn(": "notebook_launcher("}, "by notebook_launcher,"),
        ({"    mp.spawn(": "    if __name__ == '__main__': mp.spawn("}, "by mp.spawn,"),
        # programs that know of launchers
        ({"nr=0": "nr=int(os.environ['RANK'])"}, None),
        ({"mp.spawn(": "if not dist.is_torchelastic_launched(): mp.spawn("}, None),
        # no such calls
        ({"mp.spawn(": "mine.spawn("}, None),
        ({"    mp.spawn(": "    print('calls mp.spawn()') #"}, None),
    ],
)
def test_a_script_that_starts_its_ranks_itself_is_refused_unless_forced(tmp_path, replaced, call):
    text = COURSE
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "main.py").write_text(text)

    def check(*overrides):
        loaded = load_job(tmp_path / "main.py", overrides=overrides or ["resources.gpus=2"])
        load_workload(loaded.job).check()

    check("resources.gpus=1")
    check("resources.gpus=2", "force=true")
    if call is None:
        check()
        return
    with pytest.raises(JobError) as error:
        check()
    assert call in error.value.message
    assert "--set force=true" in error.value.hint
