"""What LSF adds to a job's output file: a report as a mail, then the output."""

import time

from lsf_site.jobs import REASONS

_RULE = "-" * 60


def report(job, config, output):
    """The text for the output file of a job that has ended."""
    state = "Done" if job.state == "DONE" else "Exited"
    host = job.first_host
    return "\n".join(
        [
            f"Sender: LSF System <lsfadmin@{host}>",
            f"Subject: Job {job.key}: <{job.name}> in cluster <{config.cluster}> {state}",
            "",
            (
                f"Job <{job.name}> was submitted from host <{config.submission_host}> by user "
                f"<{job.user}> in cluster <{config.cluster}> at {_time(job.submit_s)}"
            ),
            (
                f"Job was executed on host(s) {_hosts(job)}, in queue <{job.queue}>, as user "
                f"<{job.user}> in cluster <{config.cluster}> at {_time(job.start_s)}"
            ),
            f"<{job.environment.get('HOME', '/')}> was used as the home directory.",
            f"<{job.run_cwd or job.cwd}> was used as the working directory.",
            f"Started at {_time(job.start_s)}",
            f"Terminated at {_time(job.end_s)}",
            f"Results reported at {_time(job.end_s)}",
            "",
            "Your job looked like:",
            "",
            _RULE,
            "# LSBATCH: User input",
            job.script.rstrip("\n"),
            _RULE,
            "",
            _end(job),
            "",
            "Resource usage summary:",
            "",
            "    CPU time :                                   0.10 sec.",
            "    Max Memory :                                 -",
            f"    Run time :                                   {job.end_s - job.start_s:.0f} sec.",
            "",
            "The output (if any) follows:",
            "",
            output,
            *_postscript(job),
            "",
        ]
    )


def _postscript(job):
    if not job.error:
        return []
    return ["", "PS:", "", f"Read file <{job.error}> for stderr output of this job."]


def _end(job):
    if job.state == "DONE":
        return "Successfully completed."
    reason = f"{job.term_reason}: {REASONS[job.term_reason]}.\n" if job.term_reason else ""
    if job.signal:
        return f"{reason}Exited by signal {job.signal}."
    return f"{reason}Exited with exit code {job.exit_code}."


def _hosts(job):
    if len(job.places) == 1 and job.places[0].slots == 1:
        return f"<{job.first_host}>"
    return " ".join(f"<{place.slots}*{place.host}>" for place in job.places)


def _time(seconds):
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(seconds))
