"""The config file of Hugging Face accelerate, and the variables that its own launcher makes of it.

`accelerate launch --config_file` sets variables for its ranks, by which Accelerator() finds mixed
precision, FSDP, DeepSpeed and so on. On each node, accelerate's functions make them of the file, in
a process of their own: importing accelerate reads what a program may set first. Where ranks are and
how they meet is hpcdist's business, so variables about that are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.job.check import show

_PROGRAM = """
import json, os, sys
sys.path = [folder for folder in sys.path if folder]
from accelerate.commands import launch
from accelerate.utils import launch as prepare
found = {}
launch.deepspeed_launcher = lambda args: found.update(prepare.prepare_deepspeed_cmd_env(args)[1])
launch.multi_gpu_launcher = lambda args: found.update(prepare.prepare_multi_gpu_env(args))
launch.simple_launcher = lambda args: found.update(prepare.prepare_simple_launcher_cmd_env(args)[1])
launch.launch_command(launch.launch_command_parser().parse_args(sys.argv[1:]))
print(json.dumps({name: found[name] for name in found if os.environ.get(name) != found[name]}))
"""
_ONE_NODE = (
    *("--num_machines", "1", "--machine_rank", "0", "--gpu_ids", "all"),
    *("--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", "0"),
    "script.py",
)
"""Arguments that change none of the variables that are kept."""
_OF_LAUNCHERS = (
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("PYTHONPATH", "ACCELERATE_CPU_AFFINITY"),
)
_IMPORTS = re.compile(r"^\s*(?:import|from)\s+(?:accelerate|transformers|trl)\b", re.MULTILINE)
"""Packages whose programs are started by `accelerate launch`."""
_LIMIT_S = 300


def accelerate_variables(text: str) -> dict[str, str]:
    """Return the variables that accelerate launch would set by a config file of this content.
    Raises JobError where accelerate is not there, does not answer, or refuses the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        command = [sys.executable, "-c", _PROGRAM, "--config_file", file.name, *_ONE_NODE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise JobError(
                f"accelerate made nothing of its config file within {_LIMIT_S:g} s",
                hint="does it import there? try: python -m accelerate.commands.launch --help",
            ) from None
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise JobError(f"accelerate makes nothing of its config file: {said}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    for name, value in found.items():
        if "\0" in value:
            raise JobError(
                f"accelerate's config file gives {name} a NUL character, and no variable can have "
                "one"
            )
    return {name: value for name, value in found.items() if name not in _OF_LAUNCHERS}


def sizes_of_config(values: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return the keys of the job that a config file has values for, by their dotted names. Raises
    JobError for what no job can be."""
    place, kind = values.get("compute_environment"), values.get("distributed_type")
    if place not in {None, "LOCAL_MACHINE"} or kind in {"XLA", "TPU"}:
        raise JobError(
            f"{shown}: compute_environment is {show(place)} and distributed_type {show(kind)}, and "
            "hpcdist starts ranks on CPUs and GPUs",
            hint="make a file for this machine by accelerate config",
        )
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
    return sizes | ({"launch.device": "cpu"} if values.get("use_cpu") else {})


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
    return f"accelerate launch would read {file}: give --set accelerate={file} for that"
