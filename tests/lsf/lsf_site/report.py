"""What LSF adds to a job's output file: a report as a mail, then the output."""

from lsf_site.jobs import REASONS

_RULE = "-" * 60


def report(job, config, output):
    """The text for the output file of a job that has ended."""
    state = "Done" if job.state == "DONE" else "Exited"
    lines = [
        f"Sender: LSF System <lsfadmin@{job.first_host}>",
        f"Subject: Job {job.key}: <{job.name}> in cluster <{config.cluster}> {state}",
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
        "The output (if any) follows:",
        "",
        output,
        "",
    ]
    return "\n".join(lines)


def _end(job):
    if job.state == "DONE":
        return "Successfully completed."
    reason = f"{job.term_reason}: {REASONS[job.term_reason]}.\n" if job.term_reason else ""
    if job.signal:
        return f"{reason}Exited by signal {job.signal}."
    return f"{reason}Exited with exit code {job.exit_code}."
