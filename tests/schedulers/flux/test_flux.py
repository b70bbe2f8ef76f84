"""A sixth scheduler is one file of pairs, a template and a line in the table."""

import os
import shutil
from pathlib import Path

import pytest
from waiting import wait_for

from hpcdist.base.files import shipped_folder
from hpcdist.cluster.schedulers import SCHEDULERS
from hpcdist.job.load import load_job
from hpcdist.schedulers import load_scheduler, request
from hpcdist.submission.plan import PlannedSubmission, plan_run
from hpcdist.submission.submit import submit

HERE = Path(__file__).parent
WORK = """\
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.02)
"""


@pytest.fixture
def flux(tmp_path, monkeypatch):
    """Flux in the table, its template among the shipped ones, and its command on PATH."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setitem(SCHEDULERS, "flux", "flux_scheduler")
    templates = shutil.copytree(shipped_folder("templates"), tmp_path / "templates")
    shutil.copy(HERE / "flux.sh", templates)
    start = templates / "start_agent.sh"  # the table of another process has no Flux
    line = "from hpcdist.entry import main"
    added = 'from hpcdist.cluster.schedulers import SCHEDULERS as s; s["flux"] = "flux_scheduler"\n'
    start.write_text(start.read_text().replace(line, added + line))
    monkeypatch.setattr(request, "shipped_folder", lambda _: templates)
    # Without its cache: other tests have read templates of the same names.
    monkeypatch.setattr(request, "_read_template", request._read_template.__wrapped__)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("FAKE_FLUX", str(tmp_path / "jobs"))
    monkeypatch.setenv("PATH", str(HERE), prepend=os.pathsep)
    return load_scheduler("flux")


def test_runs_are_submitted_and_end_as_flux_and_its_agents_say_or_as_the_user(
    flux, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(WORK)
    loaded = load_job("work.py", overrides=["resources.nodes=2", "launch.device=cpu"])
    planned = PlannedSubmission(plans=[plan_run(loaded, scheduler="flux")])
    run, cancelled = (submit(planned, runs=tmp_path / "runs").runs[0] for _ in range(2))
    assert run.read_job_id() == "f1AB"
    assert flux.conditions([run])[run.id].state == "running"
    wait_for(cancelled.has_started)
    flux.cancel([cancelled])
    assert cancelled.read_verdict().state == "cancelled"
    (tmp_path / "go").touch()
    verdict = wait_for(run.read_verdict)
    assert verdict.state == "done", verdict.message
    books = flux.accounting([run])[run.id]
    wait_for(lambda: flux.accounting([run])[run.id].exit_code == 0)
    assert (books.job_id, flux.answers()) == ("f1AB", True)
    assert [one.state for one in flux.examine(None, None)] == ["pass"]  # the doctor
