"""`hpcdist plan`: when a job would start, how long it takes, whether it fits, what it costs."""

from __future__ import annotations

import json
import time

import click

from hpcdist.base.errors import EXIT_DONE
from hpcdist.base.text import number_of
from hpcdist.cli.follow import Interrupts
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import JOB_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import print_fact, print_json


@click.command(cls=JobCommand)
@job_options(*JOB_OPTIONS)
@click.option(
    "--probe",
    "probe_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    help="Where no run tells how long the job takes, try it here for so long, with one rank.",
)
@json_option
def plan(*, options: JobOptions, probe_s: float | None, as_json: bool) -> int:
    """Say when a job would start, how long it takes, whether it fits, and what it costs.

    \b
    hpcdist plan ddp --nodes 2 --gpus 4 --time 4:00:00
    hpcdist plan ddp --local --probe 20                 measures its steps here
    hpcdist plan train.py --gpus 4 -- --lr 0.1          from its earlier runs

    Nothing is submitted. The start is the latest, as things stand; smaller requests that start
    sooner are named. The time comes from your earlier runs of the job, and the memory of a training
    from torch's tracker, which takes some seconds. A run that is submitted by the same options
    within a day keeps what was planned, and later plans show how right it was. Of a sweep, the
    first run is planned.
    """
    from hpcdist.cli.submit import plan as plan_all
    from hpcdist.job.spec import TrainingJob, job_to_dict, warning_before_s
    from hpcdist.planning import earlier, when
    from hpcdist.runs.spec import Planned
    from hpcdist.schedulers.request import time_limit_min
    from hpcdist.summary.compare.planned import sentence
    from hpcdist.summary.figures.run import flatten
    from hpcdist.summary.values import Size

    planned, now_s = plan_all(options).plans[0], time.time()
    job, cluster = planned.loaded.job, planned.plan.cluster
    nodes, gpus = job.resources.nodes, job.resources.gpus
    start = when.ask_when(planned, now_s=now_s)
    runs = earlier.read_earlier(options.runs)
    there = earlier.at_its_place(runs, planned)
    asked = flatten(json.loads(json.dumps(job_to_dict(job))))  # as spec.json has it
    steps = earlier.count_steps(job) if isinstance(job, TrainingJob) else None
    duration = earlier.find_duration(there, asked, Size(nodes * gpus, nodes), steps)
    if duration.time_s is None and probe_s is not None:
        with Interrupts().handled():  # SIGTERM and SIGHUP, too, end what it starts
            duration = earlier.probe(planned, probe_s, steps)
    memory = earlier.find_memory(planned, there, asked)
    time_s = duration.time_s.mean if duration.time_s else None
    values = Planned(
        wait_s=start.start.time_s and max(0.0, start.start.time_s - now_s),
        duration_s=time_s,
        memory_bytes=memory.peak_bytes,
        estimate_bytes=memory.estimate_bytes,
    )
    when.keep(values, planned, options.runs)
    limit_min = time_limit_min(job, cluster)
    warning_s = warning_before_s(job.launch, limit_min)
    limits = {
        "limit_min": limit_min,
        "enough_min": earlier.suggest_limit_min(duration, warning_s=job.launch.warning_s),
        "requeues": earlier.count_requeues(duration, limit_min=limit_min, warning_s=warning_s),
        "is_requeued": job.launch.requeue and planned.scheduler.can_requeue,
    }
    hours = (time_s or 0) * nodes / 3600
    cost = {"gpu_hours": hours * gpus, "price": hours * (cluster.price_per_hour or 0)}
    if as_json:
        parts = {"start": start, "duration": duration, "limits": limits, "memory": memory}
        print_json({"asked_s": now_s, **parts, "cost": cost if hours else None, "planned": values})
        return EXIT_DONE
    unit = "GPU" if memory.device == "cuda" else "rank"
    price = f", price {cost['price']:.4g}" if cost["price"] else ""
    place = f"profile {planned.cluster.name}" if planned.cluster.name else planned.scheduler.title
    print_fact("", f"{job.name} on {number_of(nodes, 'node')} x {gpus}, {place}")
    for name, lines in {
        "start": when.start_lines(start, now_s),
        "time": earlier.time_lines(duration, limits),
        "memory": earlier.memory_lines(memory, asked.get("train.batch_size")),
        "cost": [f"{cost['gpu_hours']:.3g} {unit} hours{price}" if hours else "not known"],
        "so far": filter(None, [sentence([run.figures for run in runs])]),
    }.items():
        for number, line in enumerate(lines):
            print_fact(f"{'' if number else name:<8}", line)
    return EXIT_DONE
