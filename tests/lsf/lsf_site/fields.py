"""The fields of `bjobs -o`: their headers, widths and values."""

import time

from lsf_site.execution import run_time_s
from lsf_site.jobs import REASONS


def short_time(seconds):
    """Nov 21 16:24, as in tables; empty for None."""
    if seconds is None:
        return ""
    return time.strftime("%b %e %H:%M", time.localtime(seconds))


def exec_hosts(job):
    """[2*hostA, hostB]."""
    return [
        f"{place.slots}*{place.host}" if place.slots > 1 else place.host for place in job.places
    ]


def value(name, job, config):
    """Empty where there is nothing to tell."""
    found = _VALUES[name](job, config)
    return "" if found is None else str(found)


def job_id(job, _config):
    return str(job.id)


def _exit_code(job):
    return job.exit_code if job.state == "EXIT" else None


def _exit_reason(job):
    if job.state == "EXIT" and job.term_reason:
        return f"{job.term_reason}: {REASONS[job.term_reason]}"
    return None


def _pend_reason(job):
    return f"{job.pending_reason};" if job.state == "PEND" and job.pending_reason else None


def _pend_time(job):
    return round((job.start_s or time.time()) - job.submit_s)


def _finish_time(job):
    if job.end_s is not None:
        return f"{short_time(job.end_s)}"
    return f"{short_time(job.limit_s)} L" if job.limit_s is not None else None


_VALUES = {
    "jobid": job_id,
    "jobindex": lambda job, _: job.index,
    "stat": lambda job, _: job.state,
    "user": lambda job, _: job.user,
    "queue": lambda job, _: job.queue,
    "job_name": lambda job, _: job.name,
    "proj_name": lambda job, _: job.project,
    "from_host": lambda _, config: config.submission_host,
    "exec_host": lambda job, _: ":".join(exec_hosts(job)),
    "nexec_host": lambda job, _: len(job.places) or None,
    "first_host": lambda job, _: job.first_host,
    "submit_time": lambda job, _: short_time(job.submit_s),
    "start_time": lambda job, _: short_time(job.start_s),
    "estimated_start_time": lambda _job, _config: None,
    "finish_time": lambda job, _: _finish_time(job),
    "run_time": lambda job, _: f"{run_time_s(job):.0f} second(s)",
    "time_left": lambda _job, _config: None,
    "command": lambda job, _: job.command,
    "sub_cwd": lambda job, _: job.cwd,
    "exec_cwd": lambda job, _: (job.run_cwd or job.cwd) if job.start_s else None,
    "slots": lambda job, _: job.request.slots,
    "dependency": lambda job, _: job.condition_text,
    "exit_code": lambda job, _: _exit_code(job),
    "exit_reason": lambda job, _: _exit_reason(job),
    "pend_reason": lambda job, _: _pend_reason(job),
    "output_file": lambda job, _: job.output,
    "error_file": lambda job, _: job.error,
    "runtimelimit": lambda job, _: job.run_limit_min,
    "effective_resreq": lambda job, _: job.request.text,
    "job_description": lambda job, _: job.options.get("Jd"),
    "app": lambda job, _: job.options.get("app"),
    "ngpus": lambda job, _: sum(len(place.gpus) for place in job.places) or None,
    "pid": lambda job, _: job.pid,
    "pgid": lambda job, _: job.pid,
    "pend_time": lambda job, _: _pend_time(job),
    "max_mem": lambda job, _: "256 Mbytes" if job.start_s else None,
}
