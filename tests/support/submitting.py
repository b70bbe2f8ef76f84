"""Submitting one run, as the command does."""

from hpcdist.submission.plan import PlannedSubmission, plan_run
from hpcdist.submission.submit import submit


def submit_run(loaded, runs, **options):
    """Submit a loaded job to this machine; the run."""
    planned = PlannedSubmission.of_run(plan_run(loaded, scheduler="local", runs=runs, **options))
    return submit(planned, runs=runs).runs[0]
