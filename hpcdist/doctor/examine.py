"""The doctor's round: every check in its order, findings as they come; and the folder of the
runs."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.base.ownership import doors
from hpcdist.cluster.load import DEFAULT_ORIGIN, LoadedProfile
from hpcdist.doctor.judge import judge
from hpcdist.doctor.trial import Request, collect, run_trial
from hpcdist.runs.run import delete_folder, how_to_close, refused_doors
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Finding, failed, passed, skipped, warned
from hpcdist.submission.plan import plan_run

_LEAST_BYTES = 100e6


def examine(request: Request) -> Iterator[Finding]:
    """All checks; those that cannot be made after a failure are left out."""
    scheduler = load_scheduler(request.scheduler)
    has_failed = False
    for finding in scheduler.examine(request.loaded.job, request.cluster.profile):
        has_failed |= finding.state == "FAIL"
        yield finding
    yield _profile(request.cluster)
    folder = examine_folder(request.runs)
    yield folder
    if not has_failed:
        yield from _with_job(request, has_failed=folder.state == "FAIL")


def _with_job(request: Request, *, has_failed: bool) -> Iterator[Finding]:
    check = "resources"
    try:
        planned = plan_run(request.loaded, scheduler=request.scheduler, cluster=request.cluster)
        check = "job"
        if has_failed or not request.with_job:
            why = "it could not run" if has_failed else "--no-job"
            yield skipped("job", f"not submitted: {why}")
            return
        run, verdict = run_trial(planned, request)
    except HpcdistError as error:
        yield failed(check, error.message, error.hint or "see what the scheduler says")
        return
    said = ""
    with suppress(SchedulerError):
        said = planned.scheduler.conditions([run])[run.id].reason or ""
    found = judge(
        collect(run, verdict, said),
        planned.plan.cluster,
        asks_for_gpus=planned.plan.asks_for_gpus,
        launcher_advice=planned.scheduler.launcher_advice,
    )
    yield from found
    if any(one.state == "FAIL" for one in found):
        request.say(f"the job's run is kept: {run.path}")
    else:
        delete_folder(run.path)


def _profile(cluster: LoadedProfile) -> Finding:
    if cluster.name is None and cluster.notes:
        said, _, advice = cluster.notes[0].partition("; ")
        return warned("profile", said, advice)
    if cluster.notes:
        advice = "use it if you trust them, or have your own hpcdist.yaml"
        return warned("profile", f"{cluster.name}: {'; '.join(cluster.notes)}", advice)
    own = [f"{key} from {at}" for key, at in cluster.origins.items() if at != DEFAULT_ORIGIN]
    name = cluster.name or "none"
    return passed("profile", f"{name}: {', '.join(own) or 'the defaults of the site'}")


def examine_folder(runs: Path) -> Finding:
    """Find out whether runs can be made there, privately, and with room. A folder that is not there
    is made."""
    name = "runs folder"
    if refused := refused_doors(runs):
        listed = "; ".join(map(str, refused))
        return failed(name, f"{runs} is not private: {listed}", how_to_close(refused[0]))
    try:
        runs.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs) as probe:
            Path(probe, "file").write_bytes(b"x" * 4096)
            mode = stat.S_IMODE(os.stat(probe).st_mode)
        free = shutil.disk_usage(runs).free
    except OSError as error:
        advice = "name a folder that you can write, with --runs or HPCDIST_RUNS"
        return failed(name, f"{runs}: {error.strerror}", advice)
    where = f"{runs}, {free / 1e9:,.1f} GB free"
    if mode & 0o077:
        said = f"{where}: others can read what is private there (mode {mode:o})"
        return failed(name, said, "name a folder on another file system, with --runs")
    if free < _LEAST_BYTES:
        return failed(name, f"{where}: too little", "free some space, or name another")
    if open_to := "; ".join(map(str, doors(runs))):
        advice = "jobs run nothing that is not yours; a folder that only you can write is better"
        return warned(name, f"{where}; a run could be exchanged there: {open_to}", advice)
    return passed(name, f"{where}, writable and private")
