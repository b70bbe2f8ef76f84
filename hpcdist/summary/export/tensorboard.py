"""Runs as TensorBoard event files: a folder per run, with its series and its settings.

The files are made from TensorBoard's own messages and records; neither torch nor TensorFlow is
imported. A file has the same name each time, so that one that is written again replaces the one
before, and nothing else.
"""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from hpcdist.base import files
from hpcdist.base.text import unique
from hpcdist.runs.run import slug
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
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary as Values
    from tensorboard.summary.writer.record_writer import RecordWriter

    moments: dict[tuple[int, float], list[tuple[str, float]]] = defaultdict(list)
    for name, points in export.read_history().items():
        for point in points:
            moments[point.step, point.time_s].append((name, point.value))
    ordered = sorted(moments)  # by step: one event for each
    begun_s, last_s = ordered[0][1], ordered[-1][1]
    start, end = _session(export, begun_s, last_s)
    events = [
        Event(wall_time=begun_s, file_version="brain.Event:2"),
        Event(wall_time=begun_s, summary=start),
    ]
    for step, time_s in ordered:
        values = moments[step, time_s]
        scalars = [Values.Value(tag=name, simple_value=value) for name, value in values]
        events.append(Event(wall_time=time_s, step=step, summary=Values(value=scalars)))
    events.append(Event(wall_time=last_s, summary=end))
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
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
