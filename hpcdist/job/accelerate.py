"""The config file of Hugging Face accelerate, translated into the variables that its ranks read.

`accelerate launch --config_file` sets variables for its ranks, by which Accelerator() finds mixed
precision, FSDP, DeepSpeed and so on (accelerate/utils/launch.py). Here they are made from the same
file, with the same defaults, and accelerate need not be installed where a job is submitted. Where
ranks are and how they meet is hpcdist's business, so keys about that are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest
from hpcdist.job.check import show


class AccelerateConfig(NamedTuple):
    """The meaning of a config file for a job."""

    environment: dict[str, str]
    sizes: dict[str, Any]
    """Keys of the job that the file has a value for, by their dotted names."""
    notes: list[str]


class _Key(NamedTuple):
    variable: str
    default: Any = None
    """None: the variable is not set without the key."""
    lower: bool = False


_FSDP = {
    "fsdp_version": _Key("FSDP_VERSION", "1"),
    "fsdp_sharding_strategy": _Key("FSDP_SHARDING_STRATEGY", "FULL_SHARD"),
    "fsdp_reshard_after_forward": _Key("FSDP_RESHARD_AFTER_FORWARD", "true", lower=True),
    "fsdp_offload_params": _Key("FSDP_OFFLOAD_PARAMS", "false", lower=True),
    "fsdp_min_num_params": _Key("FSDP_MIN_NUM_PARAMS", 100_000_000),
    "fsdp_auto_wrap_policy": _Key("FSDP_AUTO_WRAP_POLICY"),
    "fsdp_transformer_layer_cls_to_wrap": _Key("FSDP_TRANSFORMER_CLS_TO_WRAP"),
    "fsdp_backward_prefetch": _Key("FSDP_BACKWARD_PREFETCH"),
    "fsdp_state_dict_type": _Key("FSDP_STATE_DICT_TYPE"),
    "fsdp_forward_prefetch": _Key("FSDP_FORWARD_PREFETCH", "false", lower=True),
    "fsdp_use_orig_params": _Key("FSDP_USE_ORIG_PARAMS", "true", lower=True),
    "fsdp_cpu_ram_efficient_loading": _Key("FSDP_CPU_RAM_EFFICIENT_LOADING", "true", lower=True),
    "fsdp_sync_module_states": _Key("FSDP_SYNC_MODULE_STATES", "true", lower=True),
    "fsdp_activation_checkpointing": _Key("FSDP_ACTIVATION_CHECKPOINTING", "false", lower=True),
    "fsdp_activation_checkpointing_offload": _Key(
        "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false", lower=True
    ),
    "fsdp_ignored_modules": _Key("FSDP_IGNORED_MODULES"),
}
_DEEPSPEED = {
    "zero_stage": _Key("ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    "gradient_accumulation_steps": _Key("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    "gradient_clipping": _Key("ACCELERATE_GRADIENT_CLIPPING", lower=True),
    "offload_optimizer_device": _Key("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", lower=True),
    "offload_param_device": _Key("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", lower=True),
    "zero3_init_flag": _Key("ACCELERATE_DEEPSPEED_ZERO3_INIT", lower=True),
    "zero3_save_16bit_model": _Key("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", lower=True),
    "deepspeed_config_file": _Key("ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    "deepspeed_moe_layer_cls_names": _Key("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
}
_DEEPSPEED_LAUNCHER = (
    *("deepspeed_hostfile", "deepspeed_multinode_launcher"),
    *("deepspeed_exclusion_filter", "deepspeed_inclusion_filter"),
)
"""Keys of `deepspeed_config` about where ranks are."""
_IMPORTS = re.compile(r"^\s*(?:import|from)\s+(?:accelerate|transformers|trl)\b", re.MULTILINE)
"""Packages whose programs are started by `accelerate launch`."""
_DYNAMO = {
    "dynamo_backend": _Key("ACCELERATE_DYNAMO_BACKEND", "no"),
    "dynamo_mode": _Key("ACCELERATE_DYNAMO_MODE", "default"),
    "dynamo_use_fullgraph": _Key("ACCELERATE_DYNAMO_USE_FULLGRAPH", False),
    "dynamo_use_dynamic": _Key("ACCELERATE_DYNAMO_USE_DYNAMIC", False),
    "dynamo_use_regional_compilation": _Key("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", False),
}
_FP8 = {
    "fp8_backend": _Key("ACCELERATE_FP8_BACKEND"),
    "fp8_use_autocast_during_eval": _Key("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", False),
    "fp8_margin": _Key("ACCELERATE_FP8_MARGIN", 0),
    "fp8_interval": _Key("ACCELERATE_FP8_INTERVAL", 1),
    "fp8_format": _Key("ACCELERATE_FP8_FORMAT", "HYBRID"),
    "fp8_amax_history_len": _Key("ACCELERATE_FP8_AMAX_HISTORY_LEN", 1024),
    "fp8_amax_compute_algo": _Key("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"),
    "fp8_opt_level": _Key("ACCELERATE_FP8_OPT_LEVEL", "O2"),
    "fp8_enable_fsdp_float8_all_gather": _Key(
        "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "true"
    ),
    "fp8_pad_inner_dim": _Key("ACCELERATE_FP8_PAD_INNER_DIM", "true"),
}
_FP8_LINEAR = "fp8_override_linear_precision"
_PARALLELISM = {
    f"parallelism_config_{name}": _Key(f"PARALLELISM_CONFIG_{name.upper()}", default)
    for name, default in {
        **dict.fromkeys(("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"), 1),
        "cp_backend": "torch",
        "sp_backend": "deepspeed",
    }.items()
}
_PARALLELISM_OF = {
    "parallelism_config_cp_size": {
        "parallelism_config_cp_comm_strategy": _Key(
            "PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather"
        ),
    },
    "parallelism_config_sp_size": {
        "parallelism_config_sp_seq_length": _Key("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None"),
        "parallelism_config_sp_seq_length_is_variable": _Key(
            "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
            True,
        ),
        "parallelism_config_sp_attn_implementation": _Key(
            "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "sdpa"
        ),
    },
}
"""Size -> the keys that count where it is above 1."""
_MEGATRON = {
    f"megatron_lm_{name}": _Key(f"MEGATRON_LM_{name.upper()}", default)
    for names, default in (
        ("tp_degree pp_degree", 1),
        ("gradient_clipping", 1.0),
        ("use_custom_fsdp no_load_optim eod_mask_loss no_save_optim optimizer_cpu_offload", False),
        ("use_precision_aware_optimizer overlap_cpu_optimizer_d2h_h2d", False),
        ("decoder_last_pipeline_num_layers num_micro_batches sequence_parallelism", None),
        ("recompute_activations use_distributed_optimizer recompute_granularity", None),
        ("recompute_method recompute_num_layers attention_backend", None),
        ("expert_model_parallel_size context_parallel_size attention_dropout", None),
        ("hidden_dropout attention_softmax_in_fp32 expert_tensor_parallel_size", None),
        ("calculate_per_token_loss use_rotary_position_embeddings", None),
    )
    for name in names.split()
}
_GPU_TYPES = ("MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
_TYPES = ("NO", "MULTI_CPU", *_GPU_TYPES)
"""Values of `distributed_type` that ranks of hpcdist can be."""
_SECTIONS: dict[str, Mapping[str, _Key]] = {
    "fsdp_config": _FSDP,
    "deepspeed_config": _DEEPSPEED,
    "dynamo_config": _DYNAMO,
    "fp8_config": _FP8 | {_FP8_LINEAR: _Key("")},
    "parallelism_config": {
        **_PARALLELISM,
        **{name: key for keys in _PARALLELISM_OF.values() for name, key in keys.items()},
    },
    "megatron_lm_config": _MEGATRON,
}
_READ = (
    *("compute_environment", "distributed_type", "mixed_precision", "fp16", "use_cpu", "debug"),
    *("num_processes", "num_machines", "dynamo_backend", *_SECTIONS),
)
_USUAL: dict[str, tuple[Any, ...]] = {
    "machine_rank": (0,),
    "rdzv_backend": ("static", "c10d"),
    "same_network": (True, False),
    "main_training_function": ("main",),
    "downcast_bf16": ("no", False),
    "gpu_ids": ("all",),
    "enable_cpu_affinity": (False,),
    "tpu_use_cluster": (False,),
    "tpu_use_sudo": (False,),
    "tpu_env": ([],),
    "commands": ([],),
    "tpu_vm": ([],),
}
"""Keys that every file has, with the values of a file that says nothing by them."""
_NOT_USED = (
    *("main_process_ip", "main_process_port", "mpirun_config", "tpu_name", "tpu_zone"),
    *("command_file", *_USUAL),
)


def note_on_default_file(program: Path) -> str | None:
    """Return how to have the file read that `accelerate launch` would read by itself for a program
    that uses accelerate; None where there is none, or the program does not."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    file = os.path.expanduser(os.path.join(home, "accelerate", "default_config.yaml"))
    try:
        if not os.path.isfile(file) or not _IMPORTS.search(program.read_text(errors="replace")):
            return None
    except OSError:
        return None
    return f"accelerate launch would read {file}: give --accelerate-config {file} for that"


def read_accelerate_config(content: bytes, shown: str) -> AccelerateConfig:
    """Translate a config file, YAML or JSON. Raises JobError for what no job can be."""
    from hpcdist.job.yaml_text import parse_keys

    values = parse_keys(content, shown, hint="accelerate config writes such a file") or {}
    values = {key: value for key, value in values.items() if value is not None}
    _check(values, shown)
    kind = str(values.get("distributed_type", "NO")).upper()
    config = {name: _section(values, name, shown) for name in _SECTIONS}
    if "dynamo_backend" in values:  # as files of older versions have it
        config["dynamo_config"].setdefault("dynamo_backend", values["dynamo_backend"])
    environment = dict(_environment(values, kind, config, shown))
    return AccelerateConfig(environment, _sizes(values, shown), list(_notes(values, config, shown)))


def _check(values: Mapping[str, Any], shown: str) -> None:
    for key in values:
        if key not in (*_READ, *_NOT_USED):
            near = nearest(key, (*_READ, *_NOT_USED))
            raise JobError(
                f"{shown}: {key} is no key of accelerate's configuration",
                hint=f"did you mean {near}?" if near else "correct it, or remove it",
            )
    where = values.get("compute_environment", "LOCAL_MACHINE")
    if where != "LOCAL_MACHINE":
        raise JobError(
            f"{shown}: compute_environment is {show(where)}, must be LOCAL_MACHINE",
            hint="hpcdist starts the ranks: make a file for this machine by accelerate config",
        )
    kind = values.get("distributed_type", "NO")
    if str(kind).upper() not in _TYPES:
        raise JobError(
            f"{shown}: distributed_type is {show(kind)}, must be one of {', '.join(_TYPES)}",
            hint="hpcdist starts ranks on CPUs and on GPUs",
        )


def _section(values: Mapping[str, Any], name: str, shown: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise JobError(f"{shown}: {name} is {show(section)}, must be a section with keys")
    prefix = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}.get(
        name, ""
    )
    found = {
        key if key.startswith(prefix) else f"{prefix}{key}": value
        for key, value in section.items()
        if value is not None
    }
    for key, value in found.items():
        if problem := _problem(key, value):
            raise JobError(
                f"{shown}: {name}.{key} is {show(value)}, {problem}",
                hint="accelerate config writes such a file",
            )
    return found


def _problem(key: str, value: Any) -> str | None:
    """Return what is wrong with a value that is to be the value of a variable."""
    if key in _PARALLELISM_OF and type(value) is not int:
        return "must be a whole number"
    if key == _FP8_LINEAR and not isinstance(value, list):
        return "must be a list of three, true or false"
    return "must not have a null character" if "\0" in str(value) else None


def _sizes(values: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return nodes and GPUs per node, as far as the file has them."""
    nodes, ranks = values.get("num_machines"), values.get("num_processes")
    sizes: dict[str, Any] = {} if nodes is None else {"resources.nodes": nodes}
    if isinstance(ranks, int) and ranks > 0:
        num_nodes = nodes if isinstance(nodes, int) and nodes > 0 else 1
        if ranks % num_nodes:
            raise JobError(
                f"{shown}: num_processes is {ranks}, must be a multiple of num_machines, {nodes}",
                hint="every node has as many ranks as the others",
            )
        sizes["resources.gpus"] = ranks // num_nodes
    if values.get("use_cpu"):
        sizes["launch.device"] = "cpu"
    return sizes


def _precision(values: Mapping[str, Any]) -> str | None:
    found = values.get("mixed_precision", "fp16" if values.get("fp16") else None)
    return "no" if found is False else found and str(found).lower()  # YAML 1.1 reads no as False


def _environment(
    values: Mapping[str, Any], kind: str, config: Mapping[str, dict[str, Any]], shown: str
) -> Iterator[tuple[str, str]]:
    precision = _precision(values)
    if kind not in _GPU_TYPES:
        yield "ACCELERATE_USE_CPU", str(bool(values.get("use_cpu")))
    if values.get("debug"):
        yield "ACCELERATE_DEBUG_MODE", "true"
    yield "ACCELERATE_MIXED_PRECISION", precision or "no"
    if precision == "fp8":
        yield from _fp8(config["fp8_config"])
    if kind != "DEEPSPEED":
        dynamo = dict(_translated(config["dynamo_config"], _DYNAMO))
        name = "ACCELERATE_DYNAMO_BACKEND"
        yield from (dynamo | {name: dynamo[name].upper()}).items()
    if kind == "FSDP":
        yield "ACCELERATE_USE_FSDP", "true"
        yield from _fsdp(config["fsdp_config"], shown)
    elif kind == "DEEPSPEED":
        fields = [*config["deepspeed_config"], *(["mixed_precision"] if precision else [])]
        yield "ACCELERATE_CONFIG_DS_FIELDS", ",".join(fields).lower()
        yield "ACCELERATE_USE_DEEPSPEED", "true"
        yield from _translated(config["deepspeed_config"], _DEEPSPEED)
    elif kind == "MEGATRON_LM":
        yield "ACCELERATE_USE_MEGATRON_LM", "true"
        yield from _translated(config["megatron_lm_config"], _MEGATRON)
    if kind in _GPU_TYPES and config["parallelism_config"]:
        yield "ACCELERATE_USE_PARALLELISM_CONFIG", "true"
        yield from _parallelism(config["parallelism_config"])


def _fp8(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _translated(section, _FP8)
    overridden = section.get(_FP8_LINEAR, [False] * 3)
    for name, value in zip(("FPROP", "DGRAD", "WGRAD"), overridden, strict=False):
        yield f"ACCELERATE_FP8_OVERRIDE_{name}", str(value)


def _fsdp(section: Mapping[str, Any], shown: str) -> Iterator[tuple[str, str]]:
    if section.get("fsdp_cpu_ram_efficient_loading", True) and not section.get(
        "fsdp_sync_module_states", True
    ):
        raise JobError(
            f"{shown}: fsdp_config.fsdp_sync_module_states must be true where "
            "fsdp_cpu_ram_efficient_loading is",
            hint="else all ranks but one would begin without weights",
        )
    yield from _translated(section, _FSDP)


def _parallelism(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _translated(section, _PARALLELISM)
    for size, keys in _PARALLELISM_OF.items():
        if (section.get(size) or 1) > 1:
            yield from _translated(section, keys)


def _translated(section: Mapping[str, Any], keys: Mapping[str, _Key]) -> Iterator[tuple[str, str]]:
    for name, key in keys.items():
        value = section.get(name, key.default)
        if value is not None:
            yield key.variable, str(value).lower() if key.lower else str(value)


def _notes(
    values: Mapping[str, Any], config: Mapping[str, dict[str, Any]], shown: str
) -> Iterator[str]:
    unused = [
        key for key in values if key in _NOT_USED and values[key] not in _USUAL.get(key, ({}, ""))
    ]
    unused += [key for key in config["deepspeed_config"] if key in _DEEPSPEED_LAUNCHER]
    if unused:
        yield f"{shown}: {', '.join(unused)} not used: hpcdist places and binds the ranks"
    unknown = [
        f"{name}.{key}"
        for name, known in _SECTIONS.items()
        for key in config[name]
        if key not in known and key not in _DEEPSPEED_LAUNCHER
    ]
    if unknown:
        yield f"{shown}: {', '.join(unknown)} not used: accelerate gives no variable for it"
