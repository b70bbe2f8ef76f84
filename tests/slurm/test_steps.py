"""Steps in a job on a real Slurm: those that enter a living one, and one in an image, which srun
starts itself; images that hpcdist starts: see tests/conformance and tests/agent/test_container.py.
"""

import json

from cluster_user import CPU, TWO
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, end_counting
from interruptions import warn
from runtime_stand_ins import image_file, install

STEPS = """
import time
import torch
from hpcdist import record

record.start()
print("here", flush=True)
while True:
    torch.ones(100).sum()
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_living_job_shows_where_its_ranks_are_is_profiled_and_entered(user, tmp_path):
    run = user.submit(user.write("steps.py", STEPS), *CPU, *TWO)
    user.wait_for_line(run, "here", rank=1)
    where = json.loads(user("stacks", run.id, "--json").stdout)
    assert [(one["node"], one["of"]["rank"]) for one in where["ranks"]] == [(0, 0), (1, 1)]
    profiled = user("profile", run.id, "--steps", "3")
    assert profiled.returncode == 0, profiled.stderr
    assert "aten::sum" in profiled.stdout
    assert len(list((run.path / "traces").iterdir())) == 2
    show = "echo $RANK $WORLD_SIZE $SLURM_JOB_ID $PWD $SLURMD_NODENAME; exit 7"
    done = user("attach", run.id, "--rank", "1", "--", "sh", "-c", show)
    assert done.returncode == 7, done.stderr
    *place, host = done.stdout.split()
    assert place == ["1", "2", run.read_job_id(), str(tmp_path)]
    assert f"on {host}, its log" in done.stderr
    user("cancel", run.id)


def test_a_run_in_an_image_that_srun_starts_goes_on(user, tmp_path, image):  # noqa: F811
    programs = install(tmp_path / "bin", "srun")
    path = f"{programs}:{user.cluster.environment['PATH']}"
    pyxis = container(image_file(image, ".sqsh"), runtime="pyxis")
    environment = user.cluster.environment | {"PATH": path}
    run = user.submit(user.write("count.py", COUNT), *CPU, *TWO, *pyxis, env=environment)
    await_counting(user, run)
    warn(user, run)
    end_counting(user, run)
    assert run.read_attempt_verdict(0).kind == "time_limit"
