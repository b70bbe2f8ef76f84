"""The fields of `bjobs -o`: their headers, widths and values."""

import time

from lsf_site.execution import run_time_s
from lsf_site.jobs import REASONS

ALIASES = {"id": "jobid", "name": "job_name", "status": "stat", "index": "jobindex"}
_WIDTHS = {
    "jobid": 7,
    "jobindex": 8,
    "stat": 5,
    "user": 7,
    "queue": 10,
    "job_name": 10,
    "proj_name": 11,
    "from_host": 11,
    "exec_host": 11,
    "nexec_host": 10,
    "first_host": 11,
    "submit_time": 15,
    "estimated_start_time": 20,
    "start_time": 15,
    "finish_time": 16,
    "run_time": 15,
    "time_left": 11,
    "command": 15,
    "sub_cwd": 10,
    "exec_cwd": 10,
    "slots": 5,
    "dependency": 15,
    "exit_code": 10,
    "exit_reason": 50,
    "pend_reason": 11,
    "output_file": 11,
    "error_file": 10,
    "runtimelimit": 12,
    "effective_resreq": 17,
    "job_description": 17,
    "app": 11,
    "ngpus": 10,
    "pid": 20,
    "pgid": 10,
    "pend_time": 12,
    "max_mem": 15,
}


def width(name):
    return _WIDTHS[name]


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


def job_id(job, config):
    return job.key if config.array_ids_with_index else str(job.id)


def _exit_code(job):
    return job.exit_code if job.state == "EXIT" else None


def _exit_reason(job):
    if job.state == "EXIT" and job.term_reason:
        return f"{job.term_reason}: {REASONS[job.term_reason]}"
    return None


def _pend_reason(job):
    return f"{job.pending_reason};" if job.state == "PEND" and job.pending_reason else None


def _time_left(job):
    if job.limit_s is None:
        return None
    seconds = max(0, job.limit_s - time.time())
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60)} L"


def _pend_time(job):
    return round((job.start_s or time.time()) - job.submit_s)


def _finish_time(job):
    if job.end_s is not None:
        return f"{short_time(job.end_s)}"
    return f"{short_time(job.limit_s)} L" if job.limit_s is not None else None


_VALUES = {
    "jobid": job_id,
    "jobindex": lambda job, _: job.index,
    "stat": lambda job, _: job.shown or job.state,
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
    "time_left": lambda job, _: _time_left(job),
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
