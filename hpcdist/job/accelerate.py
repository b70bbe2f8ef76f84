"""The config file of Hugging Face accelerate, and the variables that its own launcher makes of it.

`accelerate launch --config_file` sets variables for its ranks, by which Accelerator() finds mixed
precision, FSDP, DeepSpeed and so on. On each node, accelerate's functions make them of the file, in
a process of their own: importing accelerate reads what a program may set first. Where ranks are and
how they meet is hpcdist's business, so variables about that are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from hpcdist.base.errors import JobError

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
            said = done.stderr.strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            done, said = None, f"no answer within {_LIMIT_S} s"
    if done is None or done.returncode:
        hint = "does it import there? try: python -m accelerate.commands.launch --help"
        raise JobError(f"accelerate makes nothing of its config file: {said}", hint=hint)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    if name := next((name for name, value in found.items() if "\0" in value), None):
        raise JobError(f"accelerate's config file gives {name} a NUL character")
    return {name: value for name, value in found.items() if name not in _OF_LAUNCHERS}
