"""Inputs of each kind that hpcdist reads, and the readers of each."""

import functools

from fuzzing import Sample

from hpcdist.base import files
from hpcdist.base.errors import JobError, ProfileError
from hpcdist.runs.run import all_runs
from hpcdist.schedulers.base import Condition


def run_directory(folder):
    """A file of a run, beside another run of which nothing may be lost."""
    from made_runs import make_runs

    from hpcdist.cli.runs import describe_run, size
    from hpcdist.summary import summarize, to_json
    from hpcdist.summary.report import report, text

    runs = folder / "runs"
    make_runs(runs, num_runs=2, num_ranks=2, num_windows=7)
    run, other = all_runs(runs)
    rate = summarize([other], {}).runs[0].samples_per_s

    def read(content, *, path, original):
        path.unlink()  # the other run may share it
        path.write_bytes(content)
        try:
            assert other.id in [each.id for each in all_runs(runs)]
            described = describe_run(run, Condition(state="unknown"))
            files.to_json(described)
            assert isinstance(size(described), str)
            result = summarize([run, other], {})
            figures = {each.run: each for each in result.runs}
            assert figures[other.id].samples_per_s == rate
            files.to_json(to_json(result))
            text.to_markdown(report.make_report(result))
            text.to_csv(result)
        finally:
            path.write_bytes(original)
        return not described["damage"] and not result.skipped

    paths = [
        *(run.spec_file, run.submission_file, run.verdict_file),
        *(run.event_file(0), run.event_file(0), run.event_file(1)),
        run.usage_file(0),
    ]
    contents = [(path, path.read_bytes()) for path in paths]
    return [Sample(c, functools.partial(read, path=path, original=c)) for path, c in contents]


# What the user writes.

_JOB = b"""\
workload: train
strategy: ddp
resources: {nodes: 2, gpus: 1}
data: {name: digits, transform: [RandomHorizontalFlip, {RandomAffine: {degrees: 5}}]}
train:
  epochs: 2
  lr: 1e-3
launch: {port_range: [20000, 20100], hang_timeout_s: 60}
"""
_PROFILE = b"""\
default: jura
clusters:
  jura:
    scheduler: slurm
    partition: gpu
    setup:
      - module load cuda
    environment: {NCCL_DEBUG: INFO, B: "2"}
    directives: [--exclusive, "--comment=x"]
  alps:
    scheduler: lsf
    lsf: {gpu: "num={gpus}:mode=shared", options: [-ti]}
"""


def job_file(folder):
    from hpcdist.job.load import load_job

    def read(content):
        (folder / "job.yaml").write_bytes(content)
        load_job(str(folder / "job.yaml"))
        return True

    return [Sample(_JOB, read, (JobError,))]


def profile(folder):
    """In the working directory."""
    from hpcdist.cluster.load import all_profiles, load_profile

    def read(content):
        (folder / "hpcdist.yaml").write_bytes(content)
        load_profile("jura")
        all_profiles()
        return True

    return [Sample(_PROFILE, read, (ProfileError,))]


KINDS = {one.__name__.replace("_", " "): one for one in (run_directory, job_file, profile)}
