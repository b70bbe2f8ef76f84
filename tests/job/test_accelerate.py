"""accelerate's config file: the variables that its own launcher makes of it, and the job's size."""

import json
import os
import subprocess
import sys

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job import load_job
from hpcdist.job.accelerate import note_on_default_file, read_accelerate_config

CONFIGS = {
    "plain": """\
distributed_type: MULTI_GPU
num_machines: 2
num_processes: 8
mixed_precision: bf16
""",
    "written by accelerate config": """\
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: true
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
""",
    "dynamo": """\
distributed_type: MULTI_GPU
num_processes: 2
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: max-autotune, dynamo_use_dynamic: true}
""",
    "deepspeed": """\
distributed_type: DEEPSPEED
num_processes: 2
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
""",
    "megatron": """\
distributed_type: MEGATRON_LM
num_processes: 4
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_recompute_activations: true}
""",
    "parallelism": """\
distributed_type: FSDP
num_processes: 4
fsdp_config: {fsdp_version: 2}
parallelism_config: {parallelism_config_tp_size: 2, parallelism_config_cp_size: 2}
""",
    "cpu": "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n",
}

THEIRS = """
import json, os, sys
from accelerate.commands import launch
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env)

found = {}
for name, path in json.loads(sys.argv[1]).items():
    own = {}
    launch.deepspeed_launcher = lambda args: own.update(prepare_deepspeed_cmd_env(args)[1])
    launch.multi_gpu_launcher = lambda args: own.update(prepare_multi_gpu_env(args))
    launch.simple_launcher = lambda args: own.update(prepare_simple_launcher_cmd_env(args)[1])
    arguments = f"--config_file {path} --main_process_ip 127.0.0.1 --main_process_port 0 script.py"
    launch.launch_command(launch.launch_command_parser().parse_args(arguments.split()))
    found[name] = {key: value for key, value in own.items() if os.environ.get(key) != value}
print(json.dumps(found))
"""
NOT_OURS = {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME"}
"""What ranks are started with is hpcdist's."""


SCRIPT = """
import dataclasses, json, os
from accelerate import Accelerator

accelerator = Accelerator()
plugin = vars(accelerator.state).get("fsdp_plugin")
seen = {
    "state": {
        key: str(value)
        for key, value in vars(accelerator.state).items()
        if key not in ("device", "fsdp_plugin", "dynamo_plugin")
    },
    "dynamo": str(accelerator.state.dynamo_plugin.to_kwargs()),
    "fsdp": plugin and {
        field.name: str(getattr(plugin, field.name)) for field in dataclasses.fields(plugin)
    },
    "processes": accelerator.num_processes,
}
with open(f"seen-{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
accelerator.end_training()
"""


LAUNCHED = {
    "ddp": """\
distributed_type: MULTI_GPU
num_machines: 1
num_processes: 2
mixed_precision: bf16
dynamo_config: {dynamo_backend: EAGER}
""",
    "fsdp": """\
distributed_type: FSDP
num_machines: 1
num_processes: 2
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}
""",
}


@pytest.mark.foreign
@pytest.mark.parametrize("text", LAUNCHED.values(), ids=LAUNCHED)
def test_a_script_sees_the_same_state_as_under_accelerate_launch(text, tmp_path):
    pytest.importorskip("accelerate")
    seen = {}
    commands = {
        "theirs": "-m accelerate.commands.launch --config_file config.yaml "
        "--main_process_port 0 train.py",
        "ours": "-m hpcdist submit train.py --local --accelerate-config config.yaml",
    }
    for name, command in commands.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(text)
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
def test_the_variables_are_those_that_accelerate_launch_sets(tmp_path):
    pytest.importorskip("accelerate")
    paths = {}
    for number, (name, text) in enumerate(CONFIGS.items()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        paths[name] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", THEIRS, json.dumps(paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    for name, theirs in json.loads(done.stdout.splitlines()[-1]).items():
        ours = read_accelerate_config(CONFIGS[name].encode(), name).environment
        expected = {
            key: value
            for key, value in theirs.items()
            if key not in NOT_OURS and key != "PYTHONPATH"
        }
        assert ours == expected, name


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")

    def load(text, *overrides):
        (tmp_path / "config.yaml").write_text(text)
        return load_job("train.py", overrides=["accelerate=config.yaml", *overrides])

    return load


def test_the_job_has_the_size_of_the_file_unless_it_says_another(load):
    loaded = load(CONFIGS["plain"])
    assert (loaded.job.resources.nodes, loaded.job.resources.gpus) == (2, 4)
    assert loaded.job.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert loaded.notes == []
    loaded = load(CONFIGS["plain"], "resources.gpus=1", "environment.FSDP_VERSION='2'")
    assert (loaded.job.resources.nodes, loaded.job.resources.gpus) == (2, 1)
    assert loaded.job.environment["FSDP_VERSION"] == "2"
    (note,) = loaded.notes
    assert "is for 2 machines with 4 processes each; the job runs on 2 x 1" in note


def test_the_default_file_of_accelerate_launch_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    program, other = tmp_path / "train.py", tmp_path / "other.py"
    program.write_text("import torch\nfrom accelerate import Accelerator\n")
    other.write_text("import torch\n")
    assert note_on_default_file(program) is None
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text("mixed_precision: bf16\n")
    assert f"--accelerate-config {file} for that" in note_on_default_file(program)
    assert note_on_default_file(other) is None


def test_keys_that_do_nothing_here_are_named(load):
    (note, other) = load(
        "distributed_type: DEEPSPEED\nnum_processes: 1\nmain_process_port: 29500\ngpu_ids: 0,1\n"
        "machine_rank: 0\ndeepspeed_config: {deepspeed_multinode_launcher: pdsh, zero_stages: 2}\n"
    ).notes
    assert "main_process_port, gpu_ids, deepspeed_multinode_launcher not used" in note
    assert "deepspeed_config.zero_stages not used" in other


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_process: 2", "config.yaml: num_process is no key of accelerate's configuration"),
        ("distributed_type: XLA", 'distributed_type is "XLA", must be one of NO, MULTI_CPU'),
        ("compute_environment: AMAZON_SAGEMAKER", "must be LOCAL_MACHINE"),
        ("num_machines: 2\nnum_processes: 3", "num_processes is 3, must be a multiple of"),
        ("fsdp_config: 2", "fsdp_config is 2, must be a section with keys"),
        (
            "parallelism_config: {parallelism_config_cp_size: '2'}",
            'parallelism_config.parallelism_config_cp_size is "2", must be a whole number',
        ),
        (
            "mixed_precision: fp8\nfp8_config: {override_linear_precision: true}",
            "fp8_config.fp8_override_linear_precision is true, must be a list of three",
        ),
        ('fsdp_config: {fsdp_ignored_modules: "a\\0b"}', "must not have a null character"),
        ("- 1", "config.yaml"),
    ],
)
def test_a_file_that_no_job_can_be_is_refused(load, text, message):
    with pytest.raises(JobError) as error:
        load(text)
    assert message in error.value.message
