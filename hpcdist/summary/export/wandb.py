"""A run in Weights & Biases while it runs: at its server, or in files for `wandb sync`.

Without a key, or where the server does not answer, it is offline. Another life of the run goes on
in the same run there: offline in files of its own, of the same id.
"""

from __future__ import annotations

import netrc
import os
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.text import shown
from hpcdist.runs.run import slug
from hpcdist.summary.export.live import NewPoint
from hpcdist.summary.export.series import Export, final_figures

if TYPE_CHECKING:
    import wandb

_STEPS = "steps"
"""The axis of all series: wandb's own step counts calls."""
_ANSWER_LIMIT_S = 20.0
_NOT_OURS = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME")
"""They are for the script's own run."""


class WandbRun:
    """The run at wandb."""

    def __init__(self, folder: Path) -> None:
        """Files go below `folder`."""
        self._folder = folder
        self._run: wandb.Run | None = None
        for name in _NOT_OURS:
            os.environ.pop(name, None)

    def begin(self, export: Export) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        try:
            self._run = self._init(export, mode)
        except (wandb.Error, TimeoutError, OSError):
            if mode == "offline":
                raise
            self._run = self._init(export, "offline")
        self._run.define_metric("*", step_metric=_STEPS)

    def _init(self, export: Export, mode: str) -> wandb.Run:
        import wandb

        run, place = export.run, export.spec.sweep
        return wandb.init(
            mode=mode,  # type: ignore[arg-type] # wandb checks what the user's variable holds
            project=os.environ.get("WANDB_PROJECT") or slug(run.job),
            group=os.environ.get("WANDB_RUN_GROUP") or (place.id if place else None),
            id=f"hpcdist-{run.run}",
            resume="allow",
            name=run.run,
            config=dict(export.settings),
            allow_val_change=True,
            dir=self._folder,
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,  # the agents measure
                x_disable_meta=True,
                init_timeout=_ANSWER_LIMIT_S,
                login_timeout=_ANSWER_LIMIT_S,
            ),
        )

    def add(self, points: list[NewPoint]) -> None:
        assert self._run is not None
        for (_, step), same in groupby(points, key=lambda each: (each[1].time_s, each[1].step)):
            self._run.log({_STEPS: step, **{name: point.value for name, point in same}})

    def end(self, export: Export, *, is_over: bool) -> None:
        assert self._run is not None
        run = export.run
        if is_over:
            verdict = shown(run.verdict.message) if run.verdict else ""
            self._run.summary.update({"state": run.state, "verdict": verdict, **final_figures(run)})
        else:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if run.state == "done" else 1)


def _has_key() -> bool:
    """Return whether the user has logged in: by the variable, or by `wandb login`."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").partition("//")[2]
    try:
        return netrc.netrc().authenticators(host.partition("/")[0]) is not None
    except (OSError, netrc.NetrcParseError):
        return False
