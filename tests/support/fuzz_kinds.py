"""Inputs of each kind that hpcdist reads, and the readers of each."""

import functools
import io
import os
import socket

import msgspec
from fuzzing import Sample
from rank_ends import rank_end

from hpcdist.agent import messages
from hpcdist.agent.leader import take_request
from hpcdist.agent.node import RankMeeting
from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, JobError, ProfileError
from hpcdist.base.text import one_line
from hpcdist.job.spec import Resources, TrainJob, job_to_dict
from hpcdist.runs import requests
from hpcdist.runs.requests import Request, take_answer
from hpcdist.runs.run import Run, all_runs
from hpcdist.runs.spec import LaunchPlan, NodePlan, RunSpec, Submission, SweepPlace
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.schedulers.base import Condition

FAILED = Verdict(
    kind="exception",
    state="failed",
    message="rank 1 raised ValueError: x",
    exit_code_of_run=1,
    first=rank_end(1, exception="ValueError", traceback='File "a.py", line 1\nValueError: x'),
    victims=[0],
    time_s=1.7e9,
    log="logs/rank-00001.log",
)
_MEMORY = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")


# A run directory.


def _make_run(runs, name):
    run = Run(runs / name)
    for folder in (run.events_folder, run.logs_folder, run.attempts_folder / "00000"):
        folder.mkdir(parents=True)
    spec = RunSpec(
        id=name,
        created_s=1.7e9,
        scheduler="local",
        job=job_to_dict(TrainJob(name="ddp", resources=Resources(nodes=1, gpus=2))),
        plan=LaunchPlan(nodes=[NodePlan(rank_cpus=[[0], [1]])], device="cpu", backend="gloo"),
        versions={"torch": "2.15.0"},
        sweep=SweepPlace(id="s", index=0, num_points=2, point={"nodes": 1}, label="nodes=1"),
    )
    run.write_spec(spec)
    run.write_submission(Submission(scheduler="local", job_id="1"))
    run.write_verdict(FAILED)
    run.write_beginning(0, Beginning(life=0, time_s=1.7e9))
    for rank in range(2):
        run.event_file(rank).write_bytes(_lines(_events(rank)))
    gpu = {"uuid": "GPU-1", "name": "x", "memory_bytes": 10**10}
    node = {"event": "node", "begin_s": 1.7e9, "node": 0, "host": "a", "num_cpus": 2.0}
    usage = {"event": "usage", "wall_s": 5.0, "cpus_busy": 1.0, "gpus": [{"utilization": 1.0}]}
    windows = [usage | {"time_s": 1.7e9 + time_s} for time_s in (5, 10)]
    run.usage_file(0).write_bytes(_lines([node | {"gpus": [gpu]}, *windows]))
    return run


def _lines(events):
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def _events(rank):
    place = {"rank": rank, "node": 0, "host": "a", "world_size": 2, "local_world_size": 2}
    start = {"event": "start", "time_s": 0.0, **place, "num_nodes": 1}
    window = {"event": "steps", "epoch": 0, "steps": 10, "samples": 100, "wall_s": 1.0, "loss": 1.0}
    totals = {"sum": 1.0, "sumsq": 0.1, "min": 0.1, "max": 0.1}
    window |= {"step_time_s": totals, "phases_s": {"forward": 0.5}, "histogram": {"-24": [10]}}
    return [
        start | {"device": "cpu", "backend": "gloo"},
        {"event": "memory", "time_s": 0.1, "step": 1, **dict.fromkeys(_MEMORY, 400)},
        *(window | {"time_s": index + 1.0, "step": 10 * (index + 1)} for index in range(7)),
        {"event": "evaluate", "time_s": 8.0, "epoch": 0, "step": 70, "loss": 0.5, "accuracy": 0.9},
        {"event": "checkpoint", "time_s": 8.5, "step": 70, "save_time_s": 0.2},
        {"event": "end", "time_s": 9.0, "status": "done", "by": "rank", "step": 70},
    ]


def run_directory(folder):
    """A file of a run, beside another run of which nothing may be lost."""
    from hpcdist.cli.runs import describe_run, size
    from hpcdist.summary import summarize, to_json
    from hpcdist.summary.report import report, text

    runs = folder / "runs"
    run, other = _make_run(runs, "damaged"), _make_run(runs, "intact")
    rate = summarize([other], {}).runs[0].samples_per_s

    def read(content, *, path, original):
        path.write_bytes(content)
        try:
            assert "intact" in [each.id for each in all_runs(runs)]
            described = describe_run(run, Condition(state="unknown"))
            files.to_json(described)
            assert isinstance(size(described), str)
            one_line(f"{described['job']} {described['damage']} {described['message']}")
            result = summarize([run, other], {})
            figures = {each.run: each for each in result.runs}
            assert figures["intact"].samples_per_s == rate
            files.to_json(to_json(result))
            text.to_markdown(report.make_report(result))
            text.to_csv(result)
        finally:
            path.write_bytes(original)
        return not described["damage"] and not result.skipped

    paths = [
        *(run.spec_file, run.submission_file, run.verdict_file),
        *(run.event_file(0), run.event_file(0), run.event_file(1)),
        *(run.attempts_folder / "00000" / "begin.json", run.usage_file(0)),
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
  precision: bf16-mixed
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
      - export A=1
    environment: {NCCL_DEBUG: INFO, B: "2"}
    directives: [--exclusive, "--comment=x"]
  alps:
    scheduler: lsf
    lsf: {gpu: "num={gpus}:mode=shared", options: [-ti]}
"""


def job_file(folder):
    from hpcdist.job.load import load_job

    path = folder / "job.yaml"

    def read(content):
        path.write_bytes(content)
        load_job(str(path))
        return True

    return [Sample(_JOB, read, (JobError,))]


def profile(folder):
    from hpcdist.cluster.load import all_profiles, load_profile

    def read(content):
        before = os.getcwd()
        (folder / "hpcdist.yaml").write_bytes(content)
        os.chdir(folder)
        try:
            load_profile("jura")
            all_profiles()
        finally:
            os.chdir(before)
        return True

    return [Sample(_PROFILE, read, (ProfileError,))]


def checkpoint(folder):
    """A folder of files with their checksums, each damaged in turn."""
    import torch

    from hpcdist.training.checkpoint import checkpoint as checkpoints
    from hpcdist.training.checkpoint.files import file_name, is_intact

    model = torch.nn.Linear(4, 4)
    path, state = folder / file_name(7), {"step": 7, "name": "ddp"}
    optimizer = torch.optim.SGD(model.parameters())
    flat = checkpoints.flatten(model, optimizer)
    weight = model.weight.detach().clone()
    checkpoints.save(path, flat, state, is_current=lambda: True, together=False)

    def read(content, *, part, whole):
        part.write_bytes(content)
        try:
            if not is_intact(path):
                return False
            loaded = checkpoints.load_state(path)
            checkpoints.load_tensors(path, model, optimizer, apart=False)
        finally:
            part.write_bytes(whole)
        assert (loaded["step"], loaded["name"]) == (7, "ddp")
        assert model.weight.equal(weight)
        return True

    parts = [(part, part.read_bytes()) for part in sorted(path.iterdir())]
    return [
        Sample(whole, functools.partial(read, part=part, whole=whole), (HpcdistError,))
        for part, whole in parts
    ]


# Data.


def image(_folder):
    import numpy as np
    from PIL import Image

    from hpcdist.data.images.decoding import UnreadableImageError, decode

    ways = [(size, is_fast) for size in (None, (16, 16)) for is_fast in (False, True)]

    def read(content):
        refused = 0
        for size, is_fast in ways:
            try:
                height, width, depth = decode(content, size, is_fast=is_fast).shape
                assert (height > 0, width > 0, depth) == (True, True, 3)
            except UnreadableImageError:
                refused += 1
        return refused < len(ways)

    def encoded(form, mode="RGB"):
        out = io.BytesIO()
        pixels = (np.arange(40 * 30 * 3) % 251).astype("uint8").reshape(30, 40, 3)
        Image.fromarray(pixels).convert(mode).save(out, form)
        return out.getvalue()

    forms = ("JPEG", "JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
    return [Sample(encoded(form), read) for form in forms] + [Sample(encoded("PNG", "P"), read)]


# Messages of agents, and requests to a living run.


def message(_folder):
    meeting = RankMeeting(
        master_addr="10.0.0.1", master_port=20000, device="cpu", backend="gloo", nodes=(0, 2)
    )
    where = requests.RankStacks(
        rank=1,
        pid=2,
        threads=[requests.ThreadStack(frames=[requests.Frame("train.py", 3, "step")])],
        collectives=requests.Collectives(groups=[requests.GroupRecord(name="0")]),
    )
    report = requests.NodeStacks(host="a", ranks=[where])
    to_leader = [
        messages.Ended(attempt=0, end=rank_end(1, message="x", traceback="y")),
        messages.Failed(sentence="x"),
        messages.StoreOpened(port=20000),
        messages.Reached(attempt=0, boundary=3),
        messages.Report(request="ab", report=report),
    ]
    to_agent = [
        messages.Start(meeting=meeting),
        messages.End(attempt=0, signal=15, grace_s=1),
        messages.Ask(request=Request(limit_s=4.0, ranks=[1])),
    ]

    def read(content, *, decoder):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(content) + 65536)
            theirs.settimeout(0)
            sent = theirs.send(content) if content else 0
            theirs.shutdown(socket.SHUT_WR)
            channel = messages.Channel(ours, decoder)
            received = []
            try:
                while sent:
                    received += channel.receive()
            except messages.ChannelClosedError:
                pass
            assert all(isinstance(each, messages.Message) for each in received)
            return bool(received)

    return [
        Sample(messages.encode(each), functools.partial(read, decoder=decoder))
        for decoder, several in ((messages.TO_LEADER, to_leader), (messages.TO_AGENT, to_agent))
        for each in several
    ]


def request(folder):
    run = Run(folder)
    run.launch_folder.mkdir()
    wanted = [
        Request(limit_s=4.0, ranks=[1]),
        Request(limit_s=9.0, profiled_steps=5, wait_s=3.0),
    ]
    operations = [requests.OperationTime(name="mm", calls=2, self_s=0.1)]
    report = requests.StepReport(steps=2, operations=operations)
    answer = requests.Answer(
        attempt=0,
        time_s=1.0,
        world_size=2,
        reports={0: requests.NodeProfiles(ranks={0: report})},
        troubles={1: "no memory"},
    )

    def read_request(content):
        files.write_whole(run.request_file, content)
        return take_request(run) is not None

    def read_answer(content):
        run.answer_file(wanted[0].id).write_bytes(content)
        return take_answer(run, wanted[0]) is not None

    refusals = (OSError, msgspec.MsgspecError, UnicodeError)
    return [
        *(Sample(msgspec.json.encode(one), read_request) for one in wanted),
        Sample(msgspec.json.encode(answer), read_answer, refusals),
    ]


KINDS = {
    one.__name__.replace("_", " "): one
    for one in (*(run_directory, job_file, profile, checkpoint, image, message, request),)
}
