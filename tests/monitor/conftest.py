"""Runs that go on, with events of known content."""

import pytest

from hpcdist.base import files
from hpcdist.runs.events import EventWriter
from hpcdist.runs.run import Run


class GoingRun:
    """A run whose ranks write when the test says so."""

    def __init__(self, run, world_size):
        self.run = run
        self.world_size = world_size
        self.writers = {}

    def attempt(self, number):
        (self.run.attempts_folder / f"{number:05d}").mkdir()
        self.writers = {
            rank: EventWriter(self.run.event_file(rank, number)) for rank in range(self.world_size)
        }

    def start(self, rank, *, total_steps=400, **place):
        self.writers[rank].write(
            {"event": "start", "rank": rank, "world_size": self.world_size, **place}
        )
        self.writers[rank].write({"event": "setup", "total_steps": total_steps})

    def window(self, rank, step, *, wall_s=1.0, samples=100, waiting_s=0.0, epoch=0):
        self.writers[rank].write(
            {
                "event": "steps",
                "step": step,
                "steps": 10,
                "samples": samples,
                "wall_s": wall_s,
                "epoch": epoch,
                "step_time_s": {"sum": wall_s},
                "phases_s": {"exposed_communication": waiting_s},
            }
        )

    def end(self, rank, status="done"):
        self.writers[rank].write({"event": "end", "status": status})


@pytest.fixture
def going(tmp_path):
    """Make a run that goes on, as far as anyone can tell: its scheduler knows nothing of it."""
    made = []

    def make(name="ddp-1", *, world_size=2):
        run = Run(tmp_path / "runs" / name)
        run.path.parent.mkdir(exist_ok=True)
        run.make()
        job = {"name": "ddp", "resources": {"gpus": max(1, world_size)}}
        files.write_json(run.spec_file, {"id": run.id, "created_s": 1.7e9, "job": job})
        made.append(GoingRun(run, world_size))
        made[-1].attempt(0)
        return made[-1]

    yield make
    for one in made:
        for writer in one.writers.values():
            writer.close()
