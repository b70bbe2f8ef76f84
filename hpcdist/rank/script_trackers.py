"""Variables by which a script's own wandb and MLflow go on in the same run after a restart.

wandb knows a run by the id that WANDB_RUN_ID gives it (docs.wandb.ai, environment variables). A
script may log on every rank, and two writers of one run would mix theirs: each rank has an id of
its own, in one group. MLflow gives ids itself, and refuses MLFLOW_RUN_ID where there is no such
run. So runs that a script makes get tags (MLFLOW_RUN_CONTEXT), by which a later attempt finds that
of rank 0.

What the user has set stays.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping

from hpcdist.rank.context import RankPlace

_FIND_LIMIT_S = 20.0
_RUN_TAG, _RANK_TAG = "hpcdist.script_of", "hpcdist.rank"
_MLFLOW_ID = re.compile(r"[0-9a-f]{32}")
_FIND = f"""
import sys
sys.path[:] = filter(None, sys.path)
from mlflow import MlflowClient
client = MlflowClient()
ids = [each.experiment_id for each in client.search_experiments(max_results=1000)]
query = "tags.`{_RUN_TAG}` = '%s' and tags.`{_RANK_TAG}` = '0'" % sys.argv[1]
newest = ["attributes.start_time DESC"]
print(*(run.info.run_id for run in client.search_runs(ids, query, max_results=1, order_by=newest)))
"""
_QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def tracker_variables(
    run_id: str, group: str, place: RankPlace, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a rank that are the same in every attempt; `group` is the id of the
    sweep that a run is of, or its own."""
    variables: dict[str, str] = {}
    if not before.keys() & {"WANDB_RUN_ID", "WANDB_RESUME"}:
        own = run_id if place.rank == 0 else f"{run_id}-rank{place.rank}"
        variables |= {"WANDB_RUN_ID": own, "WANDB_RESUME": "allow"}
    tags = json.dumps({_RUN_TAG: run_id, _RANK_TAG: str(place.rank)})
    wanted = {"WANDB_RUN_GROUP": group, "MLFLOW_RUN_CONTEXT": tags}
    return variables | {name: value for name, value in wanted.items() if name not in before}


def find_mlflow_run(run_id: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which rank 0 goes on in the run that it made in MLflow in an earlier
    attempt; nothing where there is none, or the server does not answer at once."""
    if "MLFLOW_TRACKING_URI" not in environment or "MLFLOW_RUN_ID" in environment:
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FIND, run_id],
            env={**_QUICK, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FIND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    words = done.stdout.split()[-1:]
    found = done.returncode == 0 and words and _MLFLOW_ID.fullmatch(words[0])
    return {"MLFLOW_RUN_ID": words[0]} if found else {}
