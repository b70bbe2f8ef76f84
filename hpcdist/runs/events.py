"""The events of a run: one JSON object per line, one file per rank or node, and attempt.

The types here are those that ranks and agents write and that others read; the kinds that only
benchmarks have stand with these. docs/events.md describes all. Units stand in the names. A killed
rank leaves a torn last line: it is counted, never fatal. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from hpcdist.base import files

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by decoders at lines that are no events; the last at those that are nested too deep."""
MOST_FILE_BYTES = 250_000_000
"""Size of a file that is read; a rank that steps for a year writes less."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])

PHASES = (
    "data_wait",
    "host_to_device",
    "forward_backward",
    "exposed_communication",
    "optimizer",
    "checkpoint",
)
"""Parts of a step, in order. What is in none of them is `other` (computed by the reader)."""

HISTOGRAM_RATIO = 1.02
"""Width of a histogram bucket: bucket k holds step times around HISTOGRAM_RATIO**k seconds."""

# The bounds keep every figure that is computed from damaged files finite.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=10**18)]
Accuracy = Annotated[float, Meta(ge=-1e12, le=1e12)]
SquareSeconds = Annotated[float, Meta(ge=0, le=1e24)]
if TYPE_CHECKING:
    Bucket = int
    Counts = list[int]
else:
    # From 1e-10 s to 1e12 s. As literals all windows have the same objects as keys, which makes
    # reading and adding up histograms faster.
    Bucket = Literal[tuple(range(-1_163, 1_398))]
    Counts = Annotated[list[Count], Meta(max_length=4_096)]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """A line of an event file. Its kind is the tag of its type; unknown values are left out."""

    time_s: Seconds | None = None
    """Unix time; the writer adds it."""


class Start(Event, frozen=True, kw_only=True, tag="start"):
    """First event of a rank: where it runs."""

    pid: int | None = None
    rank: Count | None = None
    local_rank: Count | None = None
    attempt: Count | None = None
    restart_count: Count | None = None
    node: Count | None = None
    host: str | None = None
    world_size: Count | None = None
    local_world_size: Count | None = None
    num_nodes: Count | None = None
    num_gpus: Count | None = None
    device: str | None = None
    cpus: list[int] | None = None
    num_cpus: Count | None = None
    num_threads: Count | None = None
    backend: str | None = None
    code: str | None = None
    """A digest of the user's files that are run, on rank 0."""


class PeerGroup(Event, frozen=True, kw_only=True, tag="group"):
    """The ranks that a rank exchanges data with; not written where that is by other means."""

    size: Count
    """Ranks in its process group; 0 without one."""
    exchanges: bool | None = None
    """A collective operation ran within its steps."""


class Setup(Event, frozen=True, kw_only=True, tag="setup"):
    """A training is ready for its first step."""

    parameters: Count | None = None
    total_steps: Count | None = None


class Resume(Event, frozen=True, kw_only=True, tag="resume"):
    """Training goes on from a checkpoint."""

    step: Count
    epoch: Count | None = None
    checkpoint: str | None = None
    exact: bool | None = None
    """Bit for bit."""


class Totals(Struct, frozen=True, kw_only=True, gc=False):
    """Times of a window's steps, summed up."""

    sum: Seconds
    sumsq: SquareSeconds
    min: Seconds
    max: Seconds


class Window(Event, frozen=True, kw_only=True, gc=False, tag="steps"):
    """A window of steps of one rank."""

    step: Count
    """Steps finished in all, at the window's end."""
    steps: Count
    profiled: bool = False
    """Its steps were under the profiler, which slows them down."""
    samples: Count
    wall_s: Seconds
    pause_s: Seconds = 0.0
    """Between its steps, and not in `wall_s`."""
    after_s: Seconds = 0.0
    """From its last step until it was written: a rank may have hung, and ended then."""
    step_time_s: Totals
    epoch: Count | None = None
    phases_s: dict[str, Seconds] = field(default_factory=dict)
    """Time by phase, over all its steps."""
    histogram: dict[Bucket, Counts] = field(default_factory=dict)
    """Bucket -> the counts of it and of those that follow it."""
    loss: float | None = None
    """Of its last batch."""
    mean_loss: float | None = None
    """Over its steps, by this rank's samples."""
    learning_rate: float | None = None
    """Value in its last step."""


class Evaluation(Event, frozen=True, kw_only=True, tag="evaluate"):
    """An evaluation over the test data."""

    step: Count | None = None
    epoch: Count | None = None
    loss: float | None = None
    accuracy: Accuracy | None = None
    samples: Count | None = None


class Epoch(Event, frozen=True, kw_only=True, tag="epoch"):
    """An epoch is done."""

    epoch: Count
    """Finished epochs."""
    step: Count | None = None
    loss: float | None = None
    """Mean over the samples of this rank, in this attempt."""
    epoch_time_s: Seconds | None = None


class Save(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint is saved."""

    save_time_s: Seconds = 0.0
    step: Count | None = None


class Note(Event, frozen=True, kw_only=True, tag="note"):
    """Something that a reader of the summary should know."""

    message: str


class Memory(Event, frozen=True, kw_only=True, tag="memory"):
    """The memory of a model in one rank, after the first step of an attempt."""

    parameter_bytes: Count
    gradient_bytes: Count
    optimizer_bytes: Count


class Flops(Event, frozen=True, kw_only=True, tag="flops"):
    """The floating-point operations of a model."""

    per_sample: Annotated[float, Meta(ge=0, le=1e24)]
    precision: str | None = None


class Digest(Event, frozen=True, kw_only=True, gc=False, tag="digest"):
    """The digest of a rank's parameters after a step."""

    step: Count
    parameters: Annotated[str, Meta(max_length=16)]
    is_sharded: bool = False
    """Each rank has a part of the parameters."""
    loss: float | None = None


class ClockSet(Event, frozen=True, kw_only=True, tag="clock"):
    """The host's clock was set while this process ran, or stood still while the machine slept."""

    shift_s: Annotated[float, Meta(ge=-1e12, le=1e12)]
    """By so much the clock is ahead of the times of this process's events, which go on as if it had
    not been set."""


class End(Event, frozen=True, kw_only=True, tag="end"):
    """Last event of a rank."""

    step: Count | None = None
    status: str | None = None
    """done, stopped, failed or killed."""
    exit_code: int | None = None
    signal: str | None = None
    max_rss_bytes: Count | None = None
    max_cuda_bytes: Count | None = None
    by: str | None = None
    """rank, or agent where the rank could not."""


class GpuFacts(Struct, frozen=True, kw_only=True):
    """A GPU, or a part of one (MIG), that the ranks of a node drive."""

    uuid: str
    name: str | None = None
    memory_bytes: Count | None = None
    """Its memory."""
    driver: str | None = None
    """Version of its driver."""


class NodeBegin(Event, frozen=True, kw_only=True, tag="node"):
    """First event of a node in an attempt; once more, with GPUs and CPUs, before the samples."""

    begin_s: Amount
    """Unix time at which the ranks were started."""
    node: Count | None = None
    host: str | None = None
    cpus: list[int] | None = None
    """CPUs that the ranks are bound to; None where they are bound to none."""
    num_cpus: Amount | None = None
    """CPUs that the ranks may use; a quota counts in part."""
    host_cpus: Count | None = None
    """CPUs that the host has, other jobs' included."""
    cpu_model: str | None = None
    """As /proc/cpuinfo names it."""
    gpus: list[GpuFacts] = []


class GpuWindow(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One GPU at the end of a window; what it does not tell is None."""

    utilization: Amount | None = None
    """Share of the last moment, 0 to 1, in which anything ran on it."""
    memory_bytes: Amount | None = None


class UsageWindow(Event, frozen=True, kw_only=True, tag="usage"):
    """The use of a node in a window: by its ranks, with all processes below them, and by all."""

    time_s: Seconds
    wall_s: Amount
    cpus_busy: Amount | None = None
    """CPUs' worth of time that the ranks used: 3.2 is three busy CPUs and a fifth of one."""
    bound_cpus_busy: Amount | None = None
    """The same of everybody's processes on the CPUs that the ranks are bound to, else on all."""
    gpus: list[GpuWindow] = []
    """In the order of those in the `node` event."""


EVENT_TYPES: dict[str, type[Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in Event.__subclasses__()
}
"""The kinds of events, which are the tags of their types."""


_BEGUN_S = time.time() - time.monotonic()
_LEAST_SHIFT_S = 2.0


def now_s() -> float:
    """Return the Unix time as it was when this process, or the one that it was forked from, began,
    and a monotonic clock since: a clock that is set moves no time of a run."""
    return _BEGUN_S + time.monotonic()


class EventWriter:
    """Appends events to one file, each line with one write call, so that lines never mix.

    A disk that fills up must not end a training that is hours old: the first failed write is
    reported on stderr, and recording stops.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shift_s = 0.0
        self._open()

    def _open(self) -> None:
        self._file: int | None = files.open_to_append(self.path)
        self._place = self._leads_to()

    def _leads_to(self) -> str | None:
        """Return where the descriptor leads, by no file server: a program may close all of them."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{self._file}")
        return None

    def write(self, event: Event | Mapping[str, Any]) -> None:
        """Append one event, or the fields of a benchmark's, with the time."""
        if self._file is None:
            return
        shift_s = time.time() - now_s()
        if abs(shift_s - self._shift_s) >= _LEAST_SHIFT_S:
            self._shift_s = shift_s
            self.write(ClockSet(shift_s=round(shift_s, 3)))
        fields = event if isinstance(event, Mapping) else msgspec.to_builtins(event)
        fields = {"time_s": now_s(), **fields}
        try:
            line = _encoder.encode(fields)
        except UnicodeEncodeError:  # what is no Unicode, as the names of some files are
            line = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        try:
            if self._leads_to() != self._place:
                self._open()
            os.write(self._file, line + b"\n")
        except OSError as error:
            reason = f"hpcdist: recording stopped: {self.path}: {error.strerror}"
            files.print_line(reason, sys.stderr)
            self.close()

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        if self._file is not None and self._leads_to() == self._place:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, by their fields, without lines that are torn or no events."""
    lines = files.read_bytes(path, most_bytes=MOST_FILE_BYTES).split(b"\n")
    return [event for event in map(decode_event, lines) if event is not None]


def decode_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of one line; None where it is torn, or no event."""
    try:
        event = _decoder.decode(line)
    except UNDECODABLE:
        return None
    return event if isinstance(event.get("event"), str) else None
