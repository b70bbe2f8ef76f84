"""`hpcdist render` prints byte for byte what is submitted, with RUN for the run's id."""

import os
import re

import pytest

from hpcdist.job.load import load_job
from hpcdist.schedulers import local
from hpcdist.submission.plan import PlannedSubmission, plan_run, planned_scripts
from hpcdist.submission.submit import submit

COMMANDS = {
    "slurm": ("sbatch", "cat > {sent}; echo Submitted batch job 7"),
    "lsf": ("bsub", "cat > {sent}; echo 'Job <7> is submitted to queue <normal>.'"),
    "pbs": ("qsub", 'while [ "$1" != hpcdist ]; do shift; done; cp "$2/script.sh" {sent}; echo 7'),
}


@pytest.mark.parametrize("name", ["local", *COMMANDS])
def test_render_prints_what_the_scheduler_gets(name, tmp_path, monkeypatch, write_script):
    sent = tmp_path / "sent"
    if name == "local":

        def start(argv, log, environment):
            sent.write_text(argv[-2])

        monkeypatch.setattr(local, "start_in_background", start)
    else:
        command, text = COMMANDS[name]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / command).write_text(f"#!/bin/bash\n{text.format(sent=sent)}\n")
        (tmp_path / "bin" / command).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    planned = PlannedSubmission(plans=[plan_run(load_job(write_script("")), scheduler=name)])
    ((rendered, _),) = planned_scripts(planned, tmp_path / "runs")
    (run,) = submit(planned, runs=tmp_path / "runs").runs
    assert sent.read_bytes() == re.sub(r"\bRUN\b", run.id, rendered).encode()
