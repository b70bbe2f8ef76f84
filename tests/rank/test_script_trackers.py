"""The variables by which a script's own trackers know its run after a restart."""

import json

from rank_places import place

from hpcdist.rank.script_trackers import tracker_variables


def test_each_rank_has_a_wandb_run_of_its_own_in_one_group_unless_the_user_says_otherwise():
    first, third = (tracker_variables("ddp-7", "sweep-1", place(rank=rank), {}) for rank in (0, 3))
    assert (first["WANDB_RUN_ID"], third["WANDB_RUN_ID"]) == ("ddp-7", "ddp-7-rank3")
    assert first["WANDB_RESUME"] == third["WANDB_RESUME"] == "allow"
    assert first["WANDB_RUN_GROUP"] == third["WANDB_RUN_GROUP"] == "sweep-1"
    assert json.loads(third["MLFLOW_RUN_CONTEXT"])["hpcdist.rank"] == "3"
    own = {"WANDB_RESUME": "never", "WANDB_RUN_GROUP": "g", "MLFLOW_RUN_CONTEXT": "{}"}
    assert tracker_variables("ddp-7", "sweep-1", place(rank=0), own) == {}
