"""What is imported before the ranks are forked, and in which environment: found in the user's
files, none of which is run."""

import contextlib
import os
import subprocess
import sys

import pytest
from rank_places import environment_of, place

from hpcdist.job.imports import Preload, heavy_imports, notes_on_program, readers
from hpcdist.job.program_text import OF_EACH_RANK, Change, Place

TORCH = ["torch", "torch.distributed"]


@pytest.fixture
def write(tmp_path):
    """Write main.py and the files beside it, in whose names __in__ stands for a folder."""

    def write(main, **texts):
        for name, text in {"main": main, **texts}.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "main.py"

    return write


@pytest.fixture
def found(write):
    """Heavy imports of main.py, given the texts of files."""

    def find(main, **texts):
        return heavy_imports(write(main, **texts)).modules

    return find


@pytest.fixture
def plan(write):
    """Steps as texts, and packages that are left out."""

    def plan(main, *, environ=None, function=None, **texts):
        preload = heavy_imports(write(main, **texts), environ=environ or {}, function=function)
        steps = [
            step if isinstance(step, str) else f"{step.name}={step.value}"
            for step in preload.steps
            if step != "torch.distributed"
        ]
        return steps, [one.package for one in preload.left_out]

    return plan


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("import os", []),
        ("import torch", TORCH),
        ("def main():\n    import torch", TORCH),
        ("from torch.nn import Linear", ["torch.nn", "torch.distributed"]),
        ("import numpy as np, PIL.Image", ["numpy", "PIL.Image"]),
        ("import torch\ntorch.optim.SGD", [*TORCH, "torch._dynamo"]),
        ("import os, sys, torch\nos.kill(1, 9) if f() else sys.exit(5)", TORCH),
        ("import os, sys, torch\nx = f() or sys.exit(5)", TORCH),
        ("import torch\ny = (1 if f() else 2) + (f() and 3)", TORCH),
    ],
)
def test_what_the_script_imports(found, main, expected):
    assert found(main) == expected


@pytest.mark.parametrize(
    ("main", "texts"),
    [
        ("import steps", {"steps": "import torch"}),
        ("from lib import steps", {"lib__in__steps": "import torch"}),
        ("import lib.steps", {"lib__in____init__": "", "lib__in__steps": "import torch"}),
        ("import lib", {"lib__in____init__": "from .a import b", "lib__in__a": "import torch"}),
        (
            "import lib.deep.a",
            {"lib__in__deep__in__a": "from ..b import c", "lib__in__b": "import torch"},
        ),
        ("import a", {"a": "import b", "b": "import a\ntry:\n    import torch\nexcept E: 0"}),
        ("import steps\nsteps.begin()", {"steps": "def begin():\n    import torch"}),
        ("import sys\nsys.path.insert(0, 'lib')\nimport steps", {"lib__in__steps": "import torch"}),
    ],
)
def test_what_the_users_own_modules_import(found, monkeypatch, tmp_path, main, texts):
    monkeypatch.chdir(tmp_path)
    assert found(main, **texts) == TORCH


@pytest.mark.parametrize(
    "text",
    [
        "def later():\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "import torch (",
        "from ...beyond import torch",
    ],
)
def test_what_own_modules_import_later_or_never_is_left_alone(found, text):
    assert found("import steps", steps=text) == []


def test_a_package_of_the_users_by_a_known_name_is_not_the_known_one(found):
    assert found("import torch", torch="x = 1") == []
    assert found("import sklearn, PIL", pandas="x = 1") == ["PIL"]  # sklearn would import it


def test_a_module_of_a_package_imports_relative_to_it_after_its_package(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import os\nos.environ['TORCH_LOGS'] = 'a'")
    (tmp_path / "package" / "train.py").write_text("from .steps import step")
    (tmp_path / "package" / "steps.py").write_text("import torch")
    train = tmp_path / "package" / "train.py"
    change, *modules = heavy_imports(train, first_on_path=tmp_path).steps
    assert (change.name, change.value) == ("TORCH_LOGS", "a")
    assert modules == TORCH


SET = ["OMP_NUM_THREADS=4", "torch"]


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['OMP_NUM_THREADS'] = '4'",
        "from os import environ\nenviron['OMP_NUM_THREADS'] = '4'",
        "from os import *\nenviron['OMP_NUM_THREADS'] = '4'",
        "import os as system\nsystem.environ.setdefault('OMP_NUM_THREADS', str(4))",
        "import os\nos.environ.update({'OMP_NUM_THREADS': f'{2 + 2}'})",
        "import os\nos.environ.update(OMP_NUM_THREADS='4')",
        "import os\nos.environ |= {'OMP_NUM_THREADS': '4'}",
        "import os\nenv = os.environ\nenv['OMP_NUM_THREADS'] = '4'",
        "import os\nTHREADS = 4\nos.environ['OMP_NUM_THREADS'] = '%d' % THREADS",
        "import os\nif 'OMP_NUM_THREADS' not in os.environ:\n    os.environ['OMP_NUM_THREADS']='4'",
        (
            "import os\nif os.environ.get('OMP_NUM_THREADS') is None:\n"
            "    os.environ['OMP_NUM_THREADS'] = '4'"
        ),
        "import os\nos.environ['OMP_NUM_THREADS'] = os.getenv('OMP_NUM_THREADS', '4')",
        "import os\nos.environ['OMP_NUM_THREADS'] = os.environ['SLURM_CPUS_PER_TASK']",
        "import own",
        "from own import *",
    ],
)
def test_a_literal_is_set_before_the_import_that_follows(plan, text):
    own = "import os\nN = '4'\nos.environ['OMP_NUM_THREADS'] = N"
    steps, left_out = plan(f"{text}\nimport torch", own=own, environ={"SLURM_CPUS_PER_TASK": "4"})
    assert (steps, left_out) == (SET, [])


@pytest.mark.parametrize(
    "text",
    [
        "import os, torch\nos.environ['OMP_NUM_THREADS'] = '4'",
        "import os, torch\nos.environ['OMP_NUM_THREADS'] = input()",
        "import os\nos.environ.setdefault('THERE', input())\nimport torch",
        "import os\nif 'THERE' not in os.environ:\n    os.environ['THERE'] = input()\nimport torch",
        "import os\nif __name__ != '__main__':\n    os.environ['A'] = input()\nimport torch",
        "import os\nif False:\n    os.environ['A'] = input()\nimport torch",
        "import os, sys\nif sys.platform == 'win32':\n    os.environ['A'] = input()\nimport torch",
        "import os\nos.environ['MASTER_ADDR'] = 'localhost'\nimport torch",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport torch",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\nimport torch",
        (
            "import os\nif int(os.environ['LOCAL_RANK']):\n    os.environ['WANDB_MODE']='off'\n"
            "import torch"
        ),
        "import os\nos.environ['HF_HOME'] = input()\nimport torch",
        "import os\nprint(dict(os.environ))\nenv = os.environ.copy()\nenv['A'] = '1'\nimport torch",
        "import os\n_ = {**os.environ, 'A': input()}\nimport torch",
    ],
)
def test_what_torch_does_not_read_or_is_not_run_before_it_changes_nothing(plan, text):
    steps, left_out = plan(text, environ={"THERE": ""})
    assert [step for step in steps if not step.startswith("OMP")] == ["torch"]
    assert left_out == []


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['OMP_NUM_THREADS'] = str(args.threads)",
        "os.environ[args.name] = '1'",
        "os.environ.update(args.environment)",
        "os.environ.update({'OMP_NUM_THREADS': args.n})",
        "os.environ.clear()",
        "os.putenv('OMP_NUM_THREADS', '1')",
        "os.environ['A'] = getattr(os, 'environ')['B']",
        "for name in ('OMP_NUM_THREADS',):\n    os.environ[name] = '4'",
        "def setup(number=4):\n    os.environ['A'] = str(number)\nsetup()\nos.environ['A'] = '1'",
        "def setup():\n    os.environ['A'] = '1'\nvars()[args.name]()",
        "class Setup:\n    def __init__(self, n):\n        os.environ['A'] = '1'\nSetup(4)",
        "class Setup:\n    def __init__(self, n):\n        os.environ['A'] = '1'\nk = Setup\nk(4)",
        "try:\n    os.environ['A'] = '4'\nexcept OSError: raise",
        "import own\nown.setup()",
        "from own import setup as begin\nbegin()",
        "os.environ = {}",
        "if args.debug:\n    os.environ['TORCH_LOGS'] = '+dynamo'",
        "while args.more():\n    os.environ['A'] = '1'",
        "for name in args.names:\n    os.environ[name] = '1'",
        "os.environ['A'] = '1' if args.a else '2'",
        "args.a and os.environ.setdefault('A', '1')",
        "def set_it(): os.environ['A'] = '1'\nargs.call(set_it)",
        "class Runner:\n    def go(self): os.environ['A'] = '1'\nargs.runner().go()",
        "def when():\n    if args.a: return\n    os.environ['A'] = '1'\nwhen()",
        (
            "def with_env(f):\n    def inner():\n        os.environ['A'] = '1'\n        f()\n"
            "    return inner\n@with_env\ndef main(): import torch\nmain()"
        ),
        "exec(open('env.py').read())",
        "args.configure(os.environ)",
        "from unittest.mock import patch\npatch.dict(os.environ, A='1').start()",
        "A = '1'\ndef change():\n    global A\n    A = args.a\nargs.f(change)\nos.environ['A'] = A",
        "env = {'A': '1'}\nsame = env\nsame.update(args.env)\nos.environ.update(env)",
        "env = {'A': '1'}\nargs.fill(env)\nos.environ.update(env)",
        "class C: a = '1'\nC.a = args.a\nos.environ['A'] = C.a",
        "class C: a = '1'\nsetattr(C, 'a', args.a)\nos.environ['A'] = C.a",
        "os.chdir('/')\nos.environ['A'] = os.path.abspath('a')",
        "names = ['A']\nnames.append(args.a)\nfor name in names: os.environ[name] = '1'",
        "try:\n    args.check()\n    os.environ['A'] = '1'\nexcept OSError: pass",
        "import unheard_of\nos.environ['OMP_NUM_THREADS'] = '1'",
        "if args.a:\n    import torch\nos.environ['A'] = '1'",
        "def deep(n):\n    deeper(n)\ndef deeper(n):\n    os.environ['A'] = n\ndeep(args.n)",
    ],
)
def test_torch_is_left_to_the_ranks_where_they_alone_know_what_it_reads(write, plan, text):
    main = f"import argparse, os\nargs = argparse.ArgumentParser().parse_args()\n{text}\n"
    own = "import os\ndef setup(): inner()\ndef inner(): os.environ['A'] = '1'"
    steps, left_out = plan(f"{main}import torch", own=own)
    assert "torch" not in steps
    assert left_out == ["torch"]


def test_each_package_is_imported_in_the_environment_that_it_finds_in_the_program(plan):
    assert plan(
        "import os, numpy\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n"
        "os.environ['MPLCONFIGDIR'] = '/tmp/a'\nos.environ.pop('OMP_NUM_THREADS')\n"
        "import lightning"
    ) == (
        [
            "numpy",
            "OMP_NUM_THREADS=1",
            "torch",
            "MPLCONFIGDIR=/tmp/a",
            "OMP_NUM_THREADS=None",
            "lightning",
        ],
        [],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import numpy\nos.environ['OMP_NUM_THREADS'] = x()\nimport torch", (["numpy"], ["torch"])),
        ("os.environ['OMP_NUM_THREADS'] = x()\nimport numpy, torch", ([], ["numpy", "torch"])),
        ("os.environ['TORCH_LOGS'] = x()\nimport torch, numpy", (["numpy"], ["torch"])),
        ("os.environ['TORCH_LOGS'] = x()\nimport torchvision", (["numpy", "PIL"], ["torchvision"])),
        ("os.environ['HF_HOME'] = x()\nimport torch, lightning", (["torch"], ["lightning"])),
        ("os.environ['A'] = x()\nos.environ['A'] = '1'\nimport torch", (["A=1", "torch"], [])),
        (
            "def set_it(): os.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nset_it()",
            (["torch"], []),
        ),
        (
            "import torch\nos.environ['TORCHDYNAMO_DISABLE'] = '1'\ntorch.optim",
            (["torch", "TORCHDYNAMO_DISABLE=1"], ["torch._dynamo"]),
        ),
        (
            "os.environ['TORCHDYNAMO_DISABLE'] = '1'\nimport torch\ntorch.optim",
            (["TORCHDYNAMO_DISABLE=1", "torch", "torch._dynamo"], []),
        ),
    ],
)
def test_what_is_preloaded_is_decided_by_package(plan, text, expected):
    steps, left_out = plan(f"import os\n{text}")
    assert left_out == expected[1]
    assert [step for step in steps if step in expected[0]] == expected[0]
    assert not set(left_out) & set(steps)


def test_load_dotenv_sets_what_its_file_names_unless_it_is_set_already(plan, tmp_path):
    (tmp_path / ".env").write_text("# not TORCH_HOME=1\nexport TORCH_LOGS=a\nWANDB_API_KEY=b\n")
    main = "from dotenv import load_dotenv\nload_dotenv()\nimport torch"
    assert plan(main) == (["numpy"], ["torch"])
    assert plan(main, environ={"TORCH_LOGS": "b"}) == (["torch"], [])
    assert plan(main.replace("()", "(input())")) == ([], ["torch"])


def test_the_environment_of_a_function_is_what_its_module_sets_unless_it_is_sent_alone(plan):
    main = (
        "import os\nos.environ['TORCH_LOGS'] = 'a'\nimport numpy\n"
        "def train():\n    numpy.zeros(1)\n    os.environ['OMP_NUM_THREADS'] = '4'\n"
        "    import torch"
    )
    whole = ["TORCH_LOGS=a", "numpy", "OMP_NUM_THREADS=4", "torch"]
    assert plan(main, function="main:train") == (whole, [])
    assert plan(main, function="__main__:train") == (whole[1:], [])
    unused = main.replace("numpy.zeros(1)", "pass")
    assert plan(unused, function="__main__:train") == (whole[2:3], ["numpy", "torch"])


def test_modules_are_imported_in_the_environment_of_the_program_and_it_is_put_back(monkeypatch):
    monkeypatch.setenv("HAD", "before")
    monkeypatch.setenv("GONE", "before")
    monkeypatch.delenv("NEW", raising=False)
    place = Place(file=__file__, line=1)
    steps = [
        *(
            Change(name=name, value=value, place=place)
            for name, value in (("HAD", "after"), ("GONE", None), ("NEW", "after"))
        ),
        "first",
        Change(name="NEW", value=None, place=place),
        "second",
    ]
    names = ("HAD", "GONE", "NEW")
    asking = [sys.executable, "-c", f"import os; print(*map(os.environ.get, {names}))"]
    seen = [
        (module, *map(os.environ.get, names), subprocess.check_output(asking, text=True).split())
        for module in Preload(steps=steps).in_turn()
    ]
    assert seen[0] == ("first", "after", None, "after", ["after", "None", "after"])
    assert seen[1][:4] == ("second", "after", None, None)
    assert subprocess.check_output(asking, text=True).split() == ["before", "before", "None"]
    assert [os.environ.get(name) for name in names] == ["before", "before", None]


def test_a_note_says_which_line_costs_what_and_what_to_do(write):
    main = write("import os\n\nos.environ['OMP_NUM_THREADS'] = input()\nimport torch, torchvision")
    (note,) = notes_on_program(main)
    assert note == (
        "main.py, line 3 sets OMP_NUM_THREADS to a value that is only known at run "
        "time: each rank imports torch and torchvision itself, at some seconds of its "
        "CPU and memory of its own, instead of once per node (write the value out, or "
        "set OMP_NUM_THREADS where you submit: export OMP_NUM_THREADS=...)"
    )
    main = (
        "import os\ndef setup(n):\n    os.environ['OMP_NUM_THREADS'] = n\nsetup('1')\nimport numpy"
    )
    (note,) = notes_on_program(write(main))
    assert note.startswith(
        "main.py, line 3 sets OMP_NUM_THREADS in a function, which may be called before the "
        "import: each rank imports numpy itself"
    )
    assert note.endswith("(set OMP_NUM_THREADS at the top of the program, before all imports)")
    setdefault = "os.environ.setdefault('OMP_NUM_THREADS', input())"
    assert notes_on_program(write(f"import os\n{setdefault}\nimport torch")) == []
    on_nodes = "os.environ['TMPDIR'] = '/tmp/' + os.environ['SLURM_JOB_ID']"
    assert notes_on_program(write(f"import os\n{on_nodes}\nimport torch")) == []


def test_variables_that_each_rank_gets_concern_nothing_that_is_preloaded():
    given = environment_of(place(), interface=None)
    assert given.keys() <= OF_EACH_RANK
    assert not any(map(readers, given))


def test_a_program_that_never_ends_or_calls_itself_is_read_to_an_end(plan):
    calls = "\n".join(f"def f{n}():\n    f{n + 1}()\n    f{n + 1}()" for n in range(30))
    steps, left_out = plan(f"{calls}\ndef f30(): f0()\nf0()\nwhile True: pass\nimport torch")
    assert (steps, left_out) == (["torch"], [])
    for nested in ("(" * 150 + "1" + ")" * 150 + " + 1" * 900, "-" * 900 + "1"):
        with contextlib.suppress(ValueError):  # as Python refuses to compile it
            steps, left_out = plan(f"x = {nested}\nimport torch")
            assert "torch" in [*steps, *left_out]


def test_a_program_that_cannot_be_followed_runs_all_the_same(write, monkeypatch):
    def stumble(*_):
        raise KeyError("odd")

    monkeypatch.setattr("hpcdist.job.program_text._Reader.run", stumble)
    (note,) = notes_on_program(write("import torch"))
    assert note == (
        "the text of main.py cannot be followed: KeyError('odd'): "
        "each rank imports what it needs by itself"
    )
    with pytest.raises(ValueError, match="cannot be followed"):
        heavy_imports(write("import torch"))


COURSE = """
import argparse, os
import torch.distributed as dist
import torch.multiprocessing as mp
def main():
    args = argparse.Namespace(gpus=2, nodes=2, nr=0)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "10.57.23.164", "8888"
    mp.spawn(train, nprocs=args.gpus, args=(args,))
def train(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group("nccl", init_method="env://", world_size=4, rank=rank)
main()
"""


AS_MP = "import torch.multiprocessing as mp"


@pytest.mark.parametrize(
    ("replaced", "call"),
    [
        ({}, "main.py, line 8 starts ranks by mp.spawn,"),
        ({"mp.spawn(": "mp.start_processes("}, "by mp.start_processes,"),
        ({AS_MP: "from torch import multiprocessing as mp"}, "by mp.spawn,"),
        ({AS_MP: "from torch.multiprocessing import spawn", "mp.spawn": "spawn"}, "by spawn,"),
        ({AS_MP: "import multiprocessing as mp", "mp.spawn": "mp.Process"}, "by mp.Process,"),
        # programs that know of launchers
        ({"nr=0": "nr=int(os.environ['RANK'])"}, None),
        ({"mp.spawn(": "if os.getenv('LOCAL_RANK') is None: mp.spawn("}, None),
        ({"mp.spawn(": "if 'WORLD_SIZE' not in os.environ: mp.spawn("}, None),
        ({"mp.spawn(": "if not dist.is_torchelastic_launched(): mp.spawn("}, None),
        # processes that are no ranks
        ({"dist.init_process_group": "print"}, None),
        ({"mp.spawn": "mp.Process", "MASTER": "OTHER", "init_method=": "backend="}, None),
        ({AS_MP: "import mine as mp"}, None),
    ],
)
def test_a_program_that_starts_its_ranks_itself_is_told_what_to_change(write, replaced, call):
    text = COURSE
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    notes = notes_on_program(write(text), num_ranks=4)
    assert (call is None) == (notes == [])
    if call is not None:
        assert call in notes[0]
        assert "do not set MASTER_ADDR and MASTER_PORT" in notes[0]
    assert notes_on_program(write(text), num_ranks=1) == []
