"""The variables by which a script's own wandb and MLflow go on in the same run after a restart."""

import json
import os

from hpcdist.rank.libraries import find_mlflow_run, tracker_variables

MLFLOW = """
import types

def search_runs(_, query, *, max_results, order_by, output_format, search_all_experiments):
    print("a line of the package's own")
    assert search_all_experiments and "hpcdist.script_of` = 'ddp-7'" in query
    return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="ab" * 16))]
"""


def test_each_rank_has_a_wandb_run_of_its_own_in_one_group_unless_the_user_says_otherwise():
    first, third = (tracker_variables("ddp-7", "sweep-1", rank, {}) for rank in (0, 3))
    assert (first["WANDB_RUN_ID"], third["WANDB_RUN_ID"]) == ("ddp-7", "ddp-7-rank3")
    assert first["WANDB_RESUME"] == third["WANDB_RESUME"] == "allow"
    assert first["WANDB_RUN_GROUP"] == third["WANDB_RUN_GROUP"] == "sweep-1"
    assert json.loads(third["MLFLOW_RUN_CONTEXT"])["hpcdist.rank"] == "3"
    own = {"WANDB_RESUME": "never", "WANDB_RUN_GROUP": "g", "MLFLOW_RUN_CONTEXT": "{}"}
    assert tracker_variables("ddp-7", "sweep-1", 0, own) == {}


def test_a_later_attempt_finds_the_run_that_rank_0_has_made_in_mlflow(tmp_path):
    (tmp_path / "mlflow.py").write_text(MLFLOW)
    known = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    assert find_mlflow_run("ddp-7", os.environ | known) == {"MLFLOW_RUN_ID": "ab" * 16}
    assert find_mlflow_run("ddp-7", os.environ | known | {"MLFLOW_RUN_ID": "own"}) == {}
