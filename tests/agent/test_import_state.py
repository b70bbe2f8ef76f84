"""What libraries set up when they are imported: each rank has its own, as a fresh process has."""

import json
import marshal
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdist

IMPORTED_STATE = Path(__file__).with_name("imported_state.py")
AUDIT_LIMIT_S = 240

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


def test_functions_draw_numbers_of_their_own(tmp_path, monkeypatch, write_script):
    write_script(f"import torch\n{DRAW}", "drawing.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    import drawing

    try:
        run = hpcdist.submit(drawing.draw, gpus=2, scheduler="local")
        assert_as_in_fresh_processes(run.results(timeout_s=90))
    finally:
        sys.modules.pop("drawing")


KEPT = {
    r"filelock\..*pid|fsspec\..*_pid": "compared with the process when used",
    r"joblib\._multiprocessing_helpers\._rand\..*": "compared with the process when used",
    r"joblib\._multiprocessing_helpers\.name": "of a semaphore that is gone",
    r"numpy\.f2py\..*": "the time in comments of generated code",
    r"rich\.style\._id_generator": "numbers of links on a terminal",
    r"sympy\..*dummy_index": "tells symbols of one process apart",
    r"torch\.distributed\._composable\.contract\.\w+_KEY": "name of an attribute",
    r"transformers\..*SESSION_ID": "tells downloads apart",
}
"""What differs from process to process, and may be the same in ranks: why."""

READERS = {
    "lightning.fabric.utilities.rank_zero": ["RANK"],
    "lightning_fabric.utilities.rank_zero": ["RANK"],
    "torchmetrics.utilities.prints": ["LOCAL_RANK"],
}
"""What reads a rank's variables as it is imported, and is renewed."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What a process that imports all by itself holds, and a forked one."""
    folder = tmp_path_factory.mktemp("imported")
    started = {
        way: subprocess.Popen(
            [sys.executable, str(IMPORTED_STATE), way, str(folder / way)],
            env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for way in ("fresh", "forked")
    }
    try:
        for process in started.values():
            _, errors = process.communicate(timeout=AUDIT_LIMIT_S)
            assert process.returncode == 0, errors
    finally:
        for process in started.values():
            process.kill()
            process.wait()
            process.stderr.close()
    return {way: marshal.loads((folder / way).read_bytes()) for way in started}


def is_kept(path):
    return any(re.fullmatch(pattern, path) for pattern in KEPT)


@pytest.mark.timeout(AUDIT_LIMIT_S + 30)
def test_all_that_differs_between_fresh_processes_is_renewed_in_ranks(imported):
    """A path in the list that fails is for hpcdist.rank.import_state to renew, or to be kept."""
    fresh, ours = imported["fresh"]["values"], imported["forked"]["values"]
    before = imported["forked"]["before"]
    assert "torch.default_generator" in before
    differing = {path for path in before.keys() & fresh.keys() if before[path] != fresh[path]}
    stale = {path for path in differing if ours.get(path) == before[path]}
    assert [path for path in sorted(stale) if not is_kept(path)] == []


def test_what_depends_on_the_rank_is_in_ranks_what_it_is_in_a_fresh_process(imported):
    fresh, ours = imported["fresh"]["values"], imported["forked"]["values"]
    paths = [
        path
        for path in fresh
        if "rank_zero_only" in path or path.endswith("['compile_threads'].default")
    ]
    assert paths
    assert {path: ours.get(path) for path in paths} == {path: fresh[path] for path in paths}


def test_what_is_the_same_in_fresh_processes_stays_as_it_is(imported):
    fresh, ours = imported["fresh"]["values"], imported["forked"]["values"]
    before = imported["forked"]["before"]
    same = {path for path in before.keys() & fresh.keys() if before[path] == fresh[path]}
    changed = {path for path in same if ours.get(path) != before[path]}
    changed -= {"tempfile.tempdir"}  # it is found when asked for
    assert {path for path in changed if not re.search(r"_dirty|__warningregistry__", path)} == set()


def test_what_reads_a_ranks_variables_as_it_is_imported_is_known(imported):
    """A new reader is for hpcdist.rank.import_state to renew, or not to be preloaded."""
    reads = imported["fresh"]["reads"]
    assert reads
    assert reads == {who: READERS.get(who) for who in reads}


def test_no_generator_of_a_device_exists_before_the_fork(imported):
    assert imported["forked"]["devices"] == 0
