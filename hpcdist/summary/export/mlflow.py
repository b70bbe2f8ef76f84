"""Runs in MLflow: an experiment per job, a run per run, by the address of a tracking server or a
database.

A run is found again by its tag, so that an import can be repeated: what is new of it is added, and
nothing is there twice.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import UserError
from hpcdist.base.secrets import without_passwords
from hpcdist.base.text import shown
from hpcdist.summary.export.live import NewPoint
from hpcdist.summary.export.series import Export, History, Point, final_figures, make_export
from hpcdist.summary.values import RunSummary, Summary, to_json

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities import Run as Tracked

_RUN_TAG = "hpcdist.run"
_STATE_TAG = "hpcdist.state"
_MOST_AT_ONCE = 1_000
"""Metrics in one call; of settings and tags 100."""
_MOST_SETTINGS = 100
_LONGEST = {"setting": 6_000, "tag": 5_000, "key": 250}
_STATUS = {
    "done": "FINISHED",
    "running": "RUNNING",
    "pending": "SCHEDULED",
    "unknown": "RUNNING",
    "cancelled": "KILLED",
    "preempted": "KILLED",
}
_FAILED = "FAILED"
_OPEN = ("RUNNING", "SCHEDULED")
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would call a server of its own
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # by default it tries for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


def import_runs(summary: Summary, uri: str) -> dict[str, int]:
    """Bring the runs to MLflow; returns how many were new, had changed, or were there as they are.

    Raises UserError where MLflow refuses, or cannot be reached.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    experiments: dict[str, str] = {}
    outcomes: Counter[str] = Counter({"new": 0, "updated": 0, "unchanged": 0})
    try:
        client = MlflowClient(tracking_uri=uri)
        for run in summary.runs:
            if run.job not in experiments:
                experiments[run.job] = _find_experiment(client, run.job)
            outcomes[_import_run(client, experiments[run.job], run)] += 1
    except (MlflowException, OSError) as error:  # told as MLflow tells it
        lines = (line for line in str(error).splitlines() if line.strip())
        raise UserError(
            without_passwords(f"--mlflow {uri}: {next(lines, type(error).__name__)}"),
            hint="give the address of a tracking server (http://host:5000), or a database such as"
            " sqlite:///mlflow.db",
        ) from None
    return dict(outcomes)


def _import_run(client: MlflowClient, experiment: str, run: RunSummary) -> str:
    from mlflow.entities import Metric

    export = make_export(run)
    tracked = _find(client, experiment, export)
    if tracked is None:
        _log(client, _create(client, experiment, export), export)
        return "new"
    # It had ended when it was imported, and was imported whole: the state comes last.
    is_whole = tracked.data.tags.get(_STATE_TAG) == run.state and _status(run) not in _OPEN
    if not is_whole:
        _log(client, tracked, export)
        return "updated"
    # A speed-up comes with the runs that a run is compared with.
    now_ms, there = _ms(time.time()), tracked.data.metrics
    changed = [
        Metric(key, value, now_ms, run.steps or 0)
        for key, value in final_figures(run).items()
        if there.get(key) != value
    ]
    if changed:
        client.log_batch(tracked.info.run_id, metrics=changed)
    return "updated" if changed else "unchanged"


def _find_experiment(client: MlflowClient, job: str) -> str:
    """Return the id of the experiment of a job, which is made where it is not there."""
    name = shown(job)
    known = client.get_experiment_by_name(name)
    return known.experiment_id if known else client.create_experiment(name)


def _find(client: MlflowClient, experiment: str, export: Export) -> Tracked | None:
    """Return the run of a run; None where it is not there yet."""
    query = f"tags.`{_RUN_TAG}` = '{_id_tag(export)}'"
    found = client.search_runs([experiment], query, max_results=1)
    return found[0] if found else None


def _create(client: MlflowClient, experiment: str, export: Export) -> Tracked:
    tags = {_RUN_TAG: _id_tag(export)}
    return client.create_run(experiment, _ms(export.created_s), tags, export.run.run)


def _id_tag(export: Export) -> str:
    return export.run.run.replace("'", "")  # searches have no way to quote it


class TrackedRun:
    """A run in MLflow while it runs, at the address in MLFLOW_TRACKING_URI."""

    def __init__(self) -> None:
        for name, value in {**_QUIET, "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._id = ""

    def begin(self, export: Export) -> None:
        experiment = _find_experiment(self._client, export.run.job)
        tracked = _find(self._client, experiment, export) or _create(
            self._client, experiment, export
        )
        self._id = tracked.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        _log_settings(self._client, tracked, export)

    def add(self, points: list[NewPoint]) -> None:
        for some in _batches([_metric(name, point) for name, point in points], _MOST_AT_ONCE):
            self._client.log_batch(self._id, metrics=some)

    def end(self, export: Export, *, is_over: bool) -> None:
        if is_over:
            _log_end(self._client, self._id, export, last_s=time.time())


def _log(client: MlflowClient, tracked: Tracked, export: Export) -> None:
    id_, history = tracked.info.run_id, export.read_history()
    _log_settings(client, tracked, export)
    for metrics in _batches(_metrics(client, tracked, history), _MOST_AT_ONCE):
        client.log_batch(id_, metrics=metrics)
    _log_end(client, id_, export, last_s=max(points[-1].time_s for points in history.values()))


def _log_settings(client: MlflowClient, tracked: Tracked, export: Export) -> None:
    from mlflow.entities import Param

    params = [
        Param(key[: _LONGEST["key"]], str(value)[: _LONGEST["setting"]])
        for key, value in export.settings.items()
        if key not in tracked.data.params  # they cannot be changed there
    ]
    for some in _batches(params, _MOST_SETTINGS):
        client.log_batch(tracked.info.run_id, params=some)


def _log_end(client: MlflowClient, id_: str, export: Export, *, last_s: float) -> None:
    """Give the figures of the whole run as files, how it ended, and where it was."""
    from mlflow.entities import RunTag

    run = export.run
    client.log_dict(id_, to_json(Summary(runs=[run], groups=[], skipped=[]))[0], "summary.json")
    client.log_text(id_, json.dumps(export.settings, indent=2, ensure_ascii=False), "settings.json")
    status = _status(run)
    if status in _OPEN:
        client.update_run(id_, status=status)
    else:
        client.set_terminated(id_, status, end_time=_ms(last_s))
    spec = export.spec
    tags = {
        "mlflow.source.type": "JOB",
        "mlflow.source.name": run.job,
        "mlflow.user": spec.user,
        "mlflow.source.git.commit": spec.git and spec.git.commit,
        "mlflow.note.content": run.verdict and run.verdict.message,
        "hpcdist.scheduler": run.scheduler,
        "hpcdist.host": spec.host,
        "hpcdist.path": run.path,
        "hpcdist.comparison": run.comparison,
        "hpcdist.variant": run.variant,
        _STATE_TAG: run.state or "unknown",
    }
    # The state last: it says that all the rest is there.
    texts = [(key, shown(value)) for key, value in tags.items() if isinstance(value, str)]
    client.log_batch(id_, tags=[RunTag(key, text[: _LONGEST["tag"]]) for key, text in texts])


def _metrics(client: MlflowClient, tracked: Tracked, history: History) -> list[Metric]:
    """Return the points that are not there yet."""
    metrics: list[Metric] = []
    for name, points in history.items():
        wanted = [_metric(name, point) for point in points]
        key = wanted[0].key if wanted else name
        there = set()
        if key in tracked.data.metrics:
            points_there = client.get_metric_history(tracked.info.run_id, key)
            there = {(metric.value, metric.timestamp, metric.step) for metric in points_there}
        metrics += [one for one in wanted if (one.value, one.timestamp, one.step) not in there]
    return metrics


def _metric(name: str, point: Point) -> Metric:
    from mlflow.entities import Metric

    # A phase of the user's may have any name.
    allowed = (char if char.isalnum() or char in "_-./ " else "_" for char in name)
    return Metric("".join(allowed)[: _LONGEST["key"]], point.value, _ms(point.time_s), point.step)


def _status(run: RunSummary) -> str:
    return _STATUS.get(run.state or "unknown", _FAILED)


def _ms(time_s: float) -> int:
    return round(time_s * 1e3)


def _batches(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    left = iter(values)
    while some := list(islice(left, size)):
        yield some
