"""What libraries set up when they are imported: each rank has its own, as a fresh process has."""

import json
import subprocess
import sys

DRAW = """
import importlib, json, multiprocessing, os, random, sys

def draw():
    numpy, torch = (importlib.import_module(name) for name in ("numpy", "torch"))
    loader = torch.utils.data.DataLoader(range(64), batch_size=64, shuffle=True)
    return {
        "initial_seed": torch.initial_seed(),
        "rand": torch.rand(4).tolist(),
        "dropout": torch.nn.functional.dropout(torch.ones(64)).tolist(),
        "shuffled": next(iter(loader)).tolist(),
        "split": list(torch.utils.data.random_split(range(64), [32, 32])[0].indices),
        "numpy": numpy.random.rand(4).tolist(),
        "numpy_generator": numpy.random.default_rng().random(4).tolist(),
        "random": random.random(),
        "authkey": multiprocessing.current_process().authkey.hex(),
        "generator": torch.rand(4, generator=torch.Generator()).tolist(),
        "seeded": [torch.manual_seed(7).initial_seed(), torch.rand(4).tolist()],
    }
"""
SCRIPT = f"""
import torch.utils.data
{DRAW}
import signal
from pathlib import Path
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
folder = Path(sys.argv[1])
(folder / f"{{attempt}}-{{os.environ['RANK']}}.part").write_text(json.dumps(draw()))
(folder / f"{{attempt}}-{{os.environ['RANK']}}.part").rename(
    folder / f"{{attempt}}-{{os.environ['RANK']}}.json"
)
if "fail" in sys.argv and attempt == "0":
    while len(list(folder.glob("0-*.json"))) < int(os.environ["WORLD_SIZE"]):
        pass
    if os.environ["RANK"] != "0":
        signal.pause()
    sys.exit(1)
"""
SAME_UNDER_TORCHRUN = {"generator", "seeded"}  # torch.Generator() has the same seed everywhere


def drawn(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*-*.json"))]


def same_in_all(found):
    return {name for name in found[0] if all(one[name] == found[0][name] for one in found)}


def differs_in_all(found):
    return {name for name in found[0] if len({str(one[name]) for one in found}) == len(found)}


def assert_as_in_fresh_processes(found):
    assert same_in_all(found) == SAME_UNDER_TORCHRUN
    assert differs_in_all(found) == found[0].keys() - SAME_UNDER_TORCHRUN


def test_ranks_and_attempts_draw_numbers_of_their_own(launch, write_script, tmp_path):
    (tmp_path / "drawn").mkdir()
    launched = launch(
        write_script(SCRIPT), tmp_path / "drawn", "fail", nodes=2, gpus=2, max_restarts=1
    )
    assert launched.verdict().kind == "done", launched.everything_said()
    found = drawn(tmp_path / "drawn")
    assert len(found) == 8
    assert_as_in_fresh_processes(found)


RENEW = """
import multiprocessing, random, tempfile
import numpy.random, torch
from hpcdist.rank.libraries import renew_import_state

def states():
    return {
        "random": random.getstate(),
        "numpy": numpy.random.get_state()[1].tolist(),
        "torch": torch.initial_seed(),
        "key": multiprocessing.current_process().authkey,
    }

before = states()
tempfile.tempdir = "/gone"
renew_import_state()
assert [name for name, state in states().items() if state == before[name]] == []
assert tempfile.tempdir is None
"""


def test_what_libraries_computed_at_their_import_is_renewed():
    subprocess.run([sys.executable, "-c", RENEW], check=True, timeout=60)
