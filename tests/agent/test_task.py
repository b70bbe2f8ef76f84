"""What an agent starts its ranks by: the job and the plan must be as hpcdist writes them."""

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.job.spec import ScriptJob, job_to_dict
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan, RunSpec


@pytest.mark.parametrize("section", ["job", "plan"])
def test_job_and_plan_must_be_as_this_version_writes_them(tmp_path, section):
    job = ScriptJob(name="job", workload="script", script="train.py")
    plan = LaunchPlan(nodes=[NodePlan()], device="cpu", backend="gloo")
    run = Run.create(tmp_path, "job")
    run.write_spec(RunSpec(scheduler="lsf", job=job_to_dict(job), plan=plan))
    read, launch, rest = run.read_launch()
    assert (read.script, launch.backend, rest.scheduler) == ("train.py", "gloo", "lsf")
    spec = files.read_json(run.spec_file)
    without = {key: value for key, value in spec.items() if key != section}
    for wrong in (*(spec | {section: value} for value in ({}, None, [])), without):
        files.write_json(run.spec_file, wrong)
        with pytest.raises(msgspec.ValidationError):
            run.read_launch()
