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
from hpcdist.summary.figures.learning import decode_learning

DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path, make_run_in: Callable[[Path], MakeRun]) -> MakeRun:
    """Make a run directory; by default a done one without events."""
    return make_run_in(tmp_path)


@pytest.fixture(scope="session")
def make_run_in() -> Callable[[Path], MakeRun]:
    """Make run directories in `runs` of a folder."""
    return run_maker


def run_maker(parent: Path) -> MakeRun:
    def make(
        name: str,
        *,
        job: str = "ddp",
        nodes: int = 1,
        gpus: int = 1,
        verdict: Verdict | None = DONE,
        scheduler: str | None = "local",
        torch: str = "2.15.0",
        train: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        checkpoint: dict[str, Any] | None = None,
        record: dict[str, Any] | None = None,
        strategy: str = "ddp",
    ) -> Run:
        run = Run(parent / "runs" / name)
        for folder in (run.events_folder, run.attempts_folder, run.logs_folder):
            folder.mkdir(parents=True)
        spec = TrainJob(
            name=job,
            strategy=strategy,
            resources=Resources(nodes=nodes, gpus=gpus),
            train=Train(**(train or {})),
            data=Data(**(data or {})),
            checkpoint=Checkpoint(**(checkpoint or {})),
            record=Record(**(record or {})),
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
            "step_time_s": Events.totals(times),
            "phases_s": {phase: sum(own) for phase, own in (phases_s or {}).items()},
            "histogram": {str(bucket): [buckets.count(bucket)] for bucket in buckets},
            "loss": 1.0,
            **fields,
        }

    @staticmethod
    def totals(times: list[float]) -> dict[str, float]:
        return {
            "sum": sum(times),
            "sumsq": sum(time * time for time in times),
            "min": min(times),
            "max": max(times),
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
def series_of():
    """Return the curves of a run, as pictures have them."""

    def read(run):
        return decode_learning(summarize([run], {}).series[str(run.path)])

    return read


@pytest.fixture
def add_run(make_run, events):
    """Add a run with this many samples/s over all its ranks."""
    count = iter(range(100))

    def add(rate, *, gpus=1, **options):
        run = make_run(f"ddp-{next(count):02d}", gpus=gpus, **options)
        for rank in range(gpus):
            start = events.start(rank, world_size=gpus)
            events.write(run, rank, [start, *events.steady([rate / gpus] * 5)])
        return run

    return add


@pytest.fixture
def make_scaled(make_run, events):
    """Runs on 1, 2 and 4 GPUs, each some times, of which more GPUs take a little longer."""

    def make(repeats):
        runs = []
        for gpus in (1, 2, 4):
            for repeat in range(repeats):
                run = make_run(f"on-{gpus}-{repeat}", gpus=gpus)
                rate = 100 / (1 + 0.1 * (gpus - 1) / gpus) * (1 + 0.001 * repeat)
                for rank in range(gpus):
                    start = events.start(rank, world_size=gpus, device="cuda:0")
                    events.write(run, rank, [start, *events.steady([rate] * 5)])
                runs.append(run)
        return runs

    return make
