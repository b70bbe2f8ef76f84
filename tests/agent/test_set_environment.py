"""What a program sets in its environment before its imports is read by them, though they are made
before the ranks are forked: as under torchrun."""

import json
import os
import subprocess
import sys

SETS = """
import os, sys
there = sorted({"numpy", "PIL", "torch"} & sys.modules.keys())
before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "PYTORCH_JIT", "TORCH_LOGS")}
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
import numpy
os.environ.update(TORCH_DISTRIBUTED_DEBUG="DETAIL", PYTORCH_JIT="0")
import own
import torch, PIL, torch.distributed as dist
before |= {
    "threads": torch.get_num_threads(),
    "debug": dist.get_debug_level().name,
    "jit": torch.jit._state._enabled.enabled,
    "logs": torch._logging._internal.log_state.is_artifact_enabled("recompiles"),
    "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
}
"""
OWN = """
import os
os.environ.setdefault("TORCH_LOGS", "recompiles")
THREADS = 2
os.environ["OMP_NUM_THREADS"] = str(THREADS)
"""
TELL = """
import json, threadpoolctl
blas = [library["num_threads"] for library in threadpoolctl.threadpool_info()
        if library["internal_api"] == "openblas" and "numpy" in library["filepath"]]
print(json.dumps([len(there), before, blas]))
"""


def test_packages_read_what_the_program_sets_before_their_import(submit, write_script, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_script(OWN, "own.py")
    script = write_script(SETS + TELL)
    launched = submit(script)
    plain = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"LOCAL_RANK": "0"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    _, *expected = json.loads(plain.stdout)
    assert launched.verdict(60).kind == "done", launched.everything_said()
    assert launched.said(0) == [[0, *expected]]  # none was there before
