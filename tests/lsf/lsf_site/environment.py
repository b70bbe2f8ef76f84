"""The variables that LSF sets in a job, and in the tasks that blaunch starts."""

import os
import re

from lsf_site.processes import HOST_MARK, JOB_MARK, TASK_MARK

HOSTS_LIMIT = 4096
KEPT_MARK = "HPCDIST_TEST_MARK"
_NOT_PASSED_ON = re.compile(r"LSB_|LS_SUBCWD$|LS_JOBPID$|LSF_PM_|LSFUSER$|CUDA_VISIBLE_DEVICES$")


def expand(text, job):
    """A path of -o or -e, with %J and %I, as an absolute one."""
    path = text.replace("%J", str(job.id)).replace("%I", str(job.index))
    path = os.path.join(job.run_cwd or job.cwd, path)
    return os.path.join(path, f"{job.id}.out") if os.path.isdir(path) else path


def job_environment(job, batch, *, script, host_file):
    """Of the job's script, on its first host."""
    config = batch.config
    listed = listed_hosts(job)
    hosts = " ".join(word for host, slots in listed for word in [host] * slots)
    found = {
        "LSB_JOBID": str(job.id),
        "LSB_JOBINDEX": str(job.index),
        "LSB_BATCH_JID": job.key,
        "LSB_JOBNAME": job.name,
        "LSB_QUEUE": job.queue,
        "LSB_SUB_HOST": config.submission_host,
        "LSB_EXEC_CLUSTER": config.cluster,
        "LSB_JOBFILENAME": str(script),
        "LSB_INTERACTIVE": "N",
        "LS_SUBCWD": job.cwd,
        "LSFUSER": job.user,
        "LSF_ENVDIR": str(batch.folder),
        "LSF_BINDIR": str(batch.bin),
        "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots in listed),
        "LSB_DJOB_NUMPROC": str(job.request.slots),
        "LSB_DJOB_HOSTFILE": str(host_file),
        HOST_MARK: job.first_host,
        JOB_MARK: f"{job.key}.{job.attempts}",
    }
    if len(hosts) <= HOSTS_LIMIT:
        found["LSB_HOSTS"] = hosts
    if job.index:
        found["LSB_JOBINDEX_END"] = str(job.array_end)
    if job.output:
        found["LSB_OUTPUTFILE"] = expand(job.output, job)
    if job.attempts > 1 and config.traits.sets_restart:
        found["LSB_RESTART"] = "Y"
    kept = {
        name: value for name, value in job.environment.items() if not _NOT_PASSED_ON.match(name)
    }
    gpus = gpu_variables(job.places[0])
    return kept | found | gpus


def listed_hosts(job):
    """[(host, slots)] as LSF lists them."""
    return [(place.host, place.slots) for place in job.places]


def gpu_variables(place):
    """What LSF tells about the GPUs that a job has on one host."""
    if not place.gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus))}


def task_environment(job, place, number, caller, batch):
    """Of a task: the caller's variables travel, or those of a fresh login are all there is."""
    job_mark = {JOB_MARK: f"{job.key}.{job.attempts}", TASK_MARK: str(number)}
    if not batch.config.traits.environment_travels:
        return login_environment(place.host, caller, batch) | job_mark
    more = {"LSF_PM_TASKID": str(number), HOST_MARK: place.host}
    return caller | more | gpu_variables(place) | job_mark


def login_environment(host, caller, batch):
    """Of a fresh login on a host; what tests know their processes by always goes along."""
    marks = {HOST_MARK: host}
    if KEPT_MARK in caller:
        marks[KEPT_MARK] = caller[KEPT_MARK]
    return batch.login_environment | marks
