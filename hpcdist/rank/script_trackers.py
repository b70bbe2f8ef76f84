"""Variables by which a script's own wandb goes on in the same run after a restart, and by which
MLflow's runs are known.

wandb knows a run by the id that WANDB_RUN_ID gives it (docs.wandb.ai, environment variables). A
script may log on every rank, and two writers of one run would mix theirs: each rank has an id of
its own, in one group. MLflow gives ids itself; the runs that a script makes get tags
(MLFLOW_RUN_CONTEXT).

What the user has set stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hpcdist.rank.context import RankPlace


def tracker_variables(
    run_id: str, group: str, place: RankPlace, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a rank that are the same in every attempt; `group` is the id of the
    sweep that a run is of, or its own."""
    variables: dict[str, str] = {}
    if not before.keys() & {"WANDB_RUN_ID", "WANDB_RESUME"}:
        own = run_id if place.rank == 0 else f"{run_id}-rank{place.rank}"
        variables |= {"WANDB_RUN_ID": own, "WANDB_RESUME": "allow"}
    tags = json.dumps({"hpcdist.script_of": run_id, "hpcdist.rank": str(place.rank)})
    wanted = {"WANDB_RUN_GROUP": group, "MLFLOW_RUN_CONTEXT": tags}
    return variables | {name: value for name, value in wanted.items() if name not in before}
