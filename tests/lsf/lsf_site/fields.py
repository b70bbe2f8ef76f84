"""The fields of `bjobs -o` that hpcdist asks for."""

import time

from lsf_site.execution import run_time_s
from lsf_site.jobs import REASONS


def values(job):
    """By the fields' names; None where there is nothing to tell."""
    end = _short_time(job.end_s if job.has_ended else job.limit_s)
    has_failed = job.state == "EXIT"
    reason = f"{job.term_reason}: {REASONS[job.term_reason]}" if job.term_reason else None
    hosts = [f"{one.slots}*{one.host}" if one.slots > 1 else one.host for one in job.places]
    return {
        "jobid": job.id,
        "stat": job.state,
        "job_name": job.name,
        "exec_host": ":".join(hosts),
        "start_time": _short_time(job.start_s),
        "estimated_start_time": None,
        "finish_time": end and (end if job.has_ended else f"{end} L"),
        "run_time": f"{run_time_s(job):.0f} second(s)",
        "exit_code": job.exit_code if has_failed else None,
        "exit_reason": reason if has_failed else None,
        "pend_reason": f"{job.pending_reason};" if job.state == "PEND" else None,
        "pend_time": round((job.start_s or time.time()) - job.submit_s),
        "max_mem": "256 Mbytes" if job.start_s else None,
    }


def _short_time(seconds):
    """Nov 21 16:24, as in tables."""
    return None if seconds is None else time.strftime("%b %e %H:%M", time.localtime(seconds))
