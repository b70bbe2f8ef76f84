"""Runs as TensorBoard event files: a folder per run, with its series and its settings.

The files are made from TensorBoard's own messages and records; neither torch nor TensorFlow is
imported. A file has the same name each time, so that one that is written again replaces the one
before, and nothing else.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from hpcdist.base import files
from hpcdist.base.text import unique
from hpcdist.runs.run import slug
from hpcdist.summary.export.live import NewPoint
from hpcdist.summary.export.series import Export, make_export
from hpcdist.summary.values import Summary
from hpcdist.summary.writing import cannot_write_output

_FILE = "events.out.tfevents.0000000000.hpcdist"
_STATUS = {"done": "STATUS_SUCCESS", "running": "STATUS_RUNNING", "pending": "STATUS_RUNNING"}
_FAILED = "STATUS_FAILURE"


def write_event_files(summary: Summary, folder: Path) -> list[Path]:
    """Write a folder per run; the files. Raises UserError where they cannot be written."""
    written = []
    taken: set[str] = set()
    for run in summary.runs:
        path = folder / unique(slug(run.run), taken) / _FILE  # copies of one run may be here
        content = _encode(make_export(run))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(path, content, mode=files.USUAL_FILE)
        except OSError as error:
            raise cannot_write_output(path, error, what="event files") from None
        written.append(path)
    return written


def _encode(export: Export) -> bytes:
    points = [NewPoint(name, one) for name, own in export.read_history().items() for one in own]
    times = {(point.step, point.time_s) for _, point in points}
    begun_s, last_s = min(times)[1], max(times)[1]
    start, end = _session(export, begun_s, last_s)
    return b"".join(
        [
            _version(begun_s),
            _record(wall_time=begun_s, summary=start),
            *_scalars(sorted(points, key=lambda each: each.point[:2])),
            _record(wall_time=last_s, summary=end),
        ]
    )


class EventFile:
    """An event file that grows while a run goes on; each life has one, and they count together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._last_steps: dict[str, int] = {}

    def begin(self, export: Export) -> None:
        now_s = time.time()
        self._folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        path = self._folder / f"events.out.tfevents.{now_s:.0f}.hpcdist.{os.getpid()}"
        self._file = path.open("xb", buffering=0)
        start, _ = _session(export, now_s, now_s)
        self._file.write(_version(now_s) + _record(wall_time=now_s, summary=start))

    def add(self, points: list[NewPoint]) -> None:
        assert self._file is not None
        again = [one.step for name, one in points if one.step < self._last_steps.get(name, 0)]
        # What a restart does again counts in the place of what was there.
        purge = [_restart(min(again), points[0].point.time_s)] if again else []
        self._last_steps |= {name: point.step for name, point in points}
        self._file.write(b"".join([*purge, *_scalars(points)]))

    def end(self, export: Export, *, is_over: bool) -> None:
        assert self._file is not None
        if is_over:
            now_s = time.time()
            _, end = _session(export, now_s, now_s)
            self._file.write(_record(wall_time=now_s, summary=end))
        self._file.close()


def _scalars(points: Sequence[NewPoint]) -> Iterator[bytes]:
    """Yield an event for each moment; points of one moment are behind each other."""
    from tensorboard.compat.proto.summary_pb2 import Summary as Values

    for (step, time_s), same in groupby(points, key=lambda each: each.point[:2]):
        scalars = [Values.Value(tag=name, simple_value=point.value) for name, point in same]
        yield _record(wall_time=time_s, step=step, summary=Values(value=scalars))


def _version(time_s: float) -> bytes:
    return _record(wall_time=time_s, file_version="brain.Event:2")


def _restart(step: int, time_s: float) -> bytes:
    """Return the event by which TensorBoard forgets what it has from a step on."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return _record(wall_time=time_s, step=step, session_log=SessionLog(status=SessionLog.START))


def _record(**fields: Any) -> bytes:
    """Return an event as it stands in a file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(Event(**fields).SerializeToString())
    return buffer.getvalue()


def _session(export: Export, begun_s: float, last_s: float) -> tuple[Any, Any]:
    """Return the begin and the end of the run as the HParams plugin reads them: the message is in
    the metadata, and the value is empty."""
    from tensorboard.compat.proto.summary_pb2 import Summary as Values
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams import plugin_data_pb2 as plugin

    def summary(tag: str, data: Any) -> Any:
        placed = metadata.create_summary_metadata(data)
        value = Values.Value(tag=tag, metadata=placed, tensor=metadata.NULL_TENSOR)
        return Values(value=[value])

    run = export.run
    start = plugin.SessionStartInfo(group_name=run.run, start_time_secs=begun_s)
    for name, value in {"job": run.job, "world_size": run.world_size, **export.settings}.items():
        kind = (
            "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        )
        setattr(start.hparams[name], f"{kind}_value", value)
    status = api_pb2.Status.Value(_STATUS.get(run.state or "", _FAILED))
    end = plugin.SessionEndInfo(status=status, end_time_secs=last_s)
    begun = plugin.HParamsPluginData(session_start_info=start)
    ended = plugin.HParamsPluginData(session_end_info=end)
    return (
        summary(metadata.SESSION_START_INFO_TAG, begun),
        summary(metadata.SESSION_END_INFO_TAG, ended),
    )
