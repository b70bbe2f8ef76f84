"""Run directories as the launcher and the ranks leave them, with events of known content."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.job.spec import Checkpoint, Data, Record, Resources, Train, TrainJob, job_to_dict
from hpcdist.runs.events import HISTOGRAM_RATIO
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.report.page import to_html
from hpcdist.summary.report.report import make_report

DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)

_SECTIONS = {"train": Train, "data": Data, "checkpoint": Checkpoint, "record": Record}
MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Make a run directory; by default a done one without events."""
    return run_maker(tmp_path)


def run_maker(parent: Path) -> MakeRun:
    """Make run directories in `runs` of a folder."""

    def make(
        name: str,
        *,
        job: str = "ddp",
        nodes: int = 1,
        gpus: int = 1,
        verdict: Verdict | None = DONE,
        scheduler: str | None = "local",
        torch: str = "2.15.0",
        strategy: str = "ddp",
        **sections: dict[str, Any],
    ) -> Run:
        run = Run(parent / "runs" / name)
        for folder in (run.events_folder, run.attempts_folder, run.logs_folder):
            folder.mkdir(parents=True)
        spec = TrainJob(
            name=job,
            strategy=strategy,
            resources=Resources(nodes=nodes, gpus=gpus),
            **{key: _SECTIONS[key](**values) for key, values in sections.items()},
        )
        files.write_json(
            run.spec_file,
            {
                "version": 1,
                "id": run.id,
                "created_s": 1.7e9,
                "job": job_to_dict(spec),
                "versions": {"torch": torch},
            },
        )
        if scheduler:
            files.write_json(run.submission_file, {"scheduler": scheduler, "job_id": "1"})
        if verdict:
            run.write_verdict(verdict)
        return run

    return make


class Events:
    """Makes events of known content, and writes them as a rank would."""

    @staticmethod
    def start(rank: int, *, world_size: int, num_nodes: int = 1, **fields: Any) -> dict[str, Any]:
        local = world_size // num_nodes
        return {
            "event": "start",
            "time_s": 0.0,
            "rank": rank,
            "node": rank // local,
            "host": f"host{rank // local}",
            "world_size": world_size,
            "local_world_size": local,
            "num_nodes": num_nodes,
            "device": "cpu",
            "backend": "gloo",
            **fields,
        }

    @staticmethod
    def window(
        *,
        step: int,
        times_s: Iterable[float],
        samples: int,
        phases_s: dict[str, Iterable[float]] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """A window that ends at `step`, from the time of each of its steps."""
        times = list(times_s)
        buckets = [round(math.log(time) / math.log(HISTOGRAM_RATIO)) for time in times]
        return {
            "event": "steps",
            "time_s": 0.0,
            "epoch": 0,
            "step": step,
            "steps": len(times),
            "samples": samples,
            "wall_s": sum(times),
            "step_time_s": {
                "sum": sum(times),
                "sumsq": sum(time * time for time in times),
                "min": min(times),
                "max": max(times),
            },
            "phases_s": {phase: sum(own) for phase, own in (phases_s or {}).items()},
            "histogram": {str(bucket): [buckets.count(bucket)] for bucket in buckets},
            "loss": 1.0,
            **fields,
        }

    @staticmethod
    def steady(
        rates: Iterable[float], *, steps: int = 10, samples: int = 100, first_step: int = 0
    ) -> list[dict[str, Any]]:
        """Windows of `steps` steps and `samples` samples each, at the given samples/s."""
        return [
            Events.window(
                step=first_step + index * steps,
                times_s=[samples / rate / steps] * steps,
                samples=samples,
            )
            for index, rate in enumerate(rates, 1)
        ]

    @staticmethod
    def phased(
        phases_s: dict[str, float], *, samples: int = 40, number: int = 10
    ) -> list[dict[str, Any]]:
        """Windows of ten steps, and the end, from the seconds of each phase of a step; `other` are
        in no phase."""
        named = {phase: [phases_s[phase]] * 10 for phase in phases_s if phase != "other"}
        times_s = [sum(phases_s.values())] * 10
        windows = [
            Events.window(step=10 * place, times_s=times_s, samples=samples, phases_s=named)
            for place in range(1, number + 1)
        ]
        return [*windows, Events.end()]

    @staticmethod
    def write(
        run: Run,
        rank: int,
        events: Iterable[dict[str, Any]],
        *,
        attempt: int = 0,
        torn: bytes = b"",
    ) -> None:
        """Windows without the mean of their losses get it."""
        (run.attempts_folder / f"{attempt:05d}").mkdir(exist_ok=True)
        events = list(events)
        means = [{"mean_loss": event["loss"]} if "loss" in event else {} for event in events]
        both = zip(means, events, strict=True)
        lines = b"".join(msgspec.json.encode(mean | event) + b"\n" for mean, event in both)
        run.event_file(rank, attempt).write_bytes(lines + torn)

    @staticmethod
    def end(**fields: Any) -> dict[str, Any]:
        return {"event": "end", "time_s": 0.0, "status": "done", "by": "rank", **fields}


@pytest.fixture(scope="session")
def events() -> type[Events]:
    """The makers of events."""
    return Events


@pytest.fixture
def record_run(make_run, events):
    """Make a run in which each rank has recorded these events, after its start, which has these
    fields; `cpus` gives those of a rank, and `spec` keys of spec.json."""

    def record(name, *ranks, start=(), spec=(), cpus=None, **options):
        run = make_run(name, **{"gpus": len(ranks)} | options)
        files.write_json(run.spec_file, files.read_json(run.spec_file) | dict(spec))
        for rank, made in enumerate(ranks):
            own = {"cpus": cpus(rank)} if cpus else {}
            begin = events.start(rank, world_size=len(ranks), **dict(start), **own)
            events.write(run, rank, [begin, *made])
        return run

    return record


@pytest.fixture
def add_run(record_run, events):
    """Add a run with this many samples/s over all its ranks."""
    count = iter(range(100))

    def add(rate, *, gpus=1, **options):
        windows = events.steady([rate / gpus] * 5)
        return record_run(f"ddp-{next(count):02d}", *[windows] * gpus, **options)

    return add


@pytest.fixture
def make_scaled(record_run, events):
    """Runs on 1, 2 and 4 GPUs, each some times, of which more GPUs take a little longer."""

    def make(repeats):
        runs = []
        for gpus in (1, 2, 4):
            for repeat in range(repeats):
                rate = 100 / (1 + 0.1 * (gpus - 1) / gpus) * (1 + 0.001 * repeat)
                ranks = [events.steady([rate] * 5)] * gpus
                name, on_gpu = f"on-{gpus}-{repeat}", {"device": "cuda:0"}
                runs.append(record_run(name, *ranks, start=on_gpu))
        return runs

    return make


EVIL = "<script>document.title='evil'</script>\"'><img src=x onerror=\"document.title='evil'\">"


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A page, in a file: usual runs of 1, 2 and 4 ranks, a hostile one that failed, one going on,
    and one that cannot be read."""
    folder = tmp_path_factory.mktemp("page")
    make_run = run_maker(folder)
    failed = {"kind": "exception", "state": "failed", "message": f"rank 0 failed: {EVIL}"}
    failed = Verdict(**failed, exit_code_of_run=1, log="logs/rank-00000.log")
    runs = [make_run("bad-1", job=EVIL, verdict=failed), make_run("going", job="m", verdict=None)]
    note = {"event": "note", "time_s": 0.0, "message": EVIL}
    windows = [window | {"phases_s": {EVIL: 0.1}} for window in Events.steady([100.0] * 4)]
    Events.write(runs[0], 0, [Events.start(0, world_size=1, host=EVIL), note, *windows])
    runs[0].log_file(0).write_text("LoginError: no hunter22 for ann\n")
    for gpus, rate in ((1, 100.0), (2, 60.0), (4, 45.0)):
        runs.append(make_run(f"ddp-{gpus}", gpus=gpus))
        for rank in range(gpus):
            made = [Events.start(rank, world_size=gpus), *Events.steady([rate] * 4), Events.end()]
            Events.write(runs[-1], rank, made)
    runs.append(make_run("torn"))
    runs[-1].spec_file.write_text("{")
    file = folder / "report.html"
    file.write_text(to_html(make_report(summarize(runs, {}))))
    return file
