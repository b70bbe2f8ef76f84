"""accelerate's config file: the variables that its own launcher makes of it."""

import json
import os
import subprocess
import sys

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job import accelerate
from hpcdist.job.accelerate import accelerate_variables
from hpcdist.job.load import load_job

SCRIPT = """
import dataclasses, json, os
from accelerate import Accelerator

accelerator = Accelerator()
state = vars(accelerator.state)
plugin = state["fsdp_plugin"]
not_compared = ("device", "fsdp_plugin", "dynamo_plugin")
seen = {
    "state": {key: str(value) for key, value in state.items() if key not in not_compared},
    "dynamo": str(state["dynamo_plugin"].to_kwargs()),
    "fsdp": {each.name: str(getattr(plugin, each.name)) for each in dataclasses.fields(plugin)},
}
with open(f"seen-{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
accelerator.end_training()
"""


FSDP = """\
distributed_type: FSDP
num_machines: 1
num_processes: 2
mixed_precision: bf16
dynamo_config: {dynamo_backend: EAGER}
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}
"""
DEEPSPEED = """\
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 4
mixed_precision: bf16
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29500
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}
"""


@pytest.mark.foreign
def test_a_script_sees_the_same_state_as_under_accelerate_launch(tmp_path):
    pytest.importorskip("accelerate")
    seen = {}
    commands = {
        "theirs": "-m accelerate.commands.launch --config_file config.yaml "
        "--main_process_port 0 train.py",
        "ours": "-m hpcdist submit train.py --local --gpus 2 --set accelerate=config.yaml",
    }
    for name, command in commands.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(FSDP)
        (folder / "train.py").write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, *command.split()],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=os.environ | {"ACCELERATE_USE_CPU": "true"},
        )
        assert done.returncode == 0, done.stderr
        seen[name] = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert seen["ours"] == seen["theirs"]


@pytest.mark.foreign
def test_the_variables_leave_out_where_ranks_are_and_how_they_meet():
    pytest.importorskip("accelerate")
    assert accelerate_variables(DEEPSPEED) == {
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,offload_optimizer_device,mixed_precision",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_DEEPSPEED": "true",
    }


def test_accelerate_itself_says_what_is_wrong_with_its_file():
    pytest.importorskip("accelerate")
    with pytest.raises(JobError) as error:
        accelerate_variables("distributed_type: FSDP\nnum_process: 2")
    assert "unknown keys (['num_process'])" in error.value.message


def test_an_accelerate_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.setattr(accelerate, "_LIMIT_S", 0.01)
    with pytest.raises(JobError, match="no answer within"):
        accelerate_variables("distributed_type: FSDP\n")


def test_the_content_of_the_file_goes_with_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "config.yaml").write_text("num_processes: 8\n")
    loaded = load_job("train.py", overrides=["accelerate=config.yaml"])
    assert loaded.job.accelerate_config == "num_processes: 8\n"
