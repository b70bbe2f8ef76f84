"""A script runs in a rank as `python script.py args` would run it."""

import json
import subprocess
import sys

import pytest

TELL = '''
"""A docstring."""
import json, os, sys

print(json.dumps({
    "name": __name__,
    "doc": __doc__,
    "file": __file__,
    "argv": sys.argv,
    "path": sys.path,
    "cwd": os.getcwd(),
}))
'''


@pytest.mark.parametrize(
    "name",
    ["-dash.py", 'sp ace/it\'s "quoted"/übung/模型/new\nline.py'],
    ids=["dash", "odd"],
)
def test_a_script_finds_what_python_would_give_it(launch, write_script, name):
    script = write_script(TELL, name)
    args = ["--lr", "0.1", "", "two words", "it's", '"', "new\nline", "ü", "--", "$HOME", "*"]
    plain = subprocess.run(
        [sys.executable, "-u", str(script), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=150,
    )
    expected = json.loads(plain.stdout)
    launched = launch(script, *args)
    assert launched.verdict().kind == "done", launched.everything_said()
    (found,) = launched.said(0)
    assert found == expected


WORKERS = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, sys

class Net:
    def __init__(self, value):
        self.value = value

class Squares:
    def __len__(self):
        return 4
    def __getitem__(self, number):
        return Net(number ** 2)

def together(nets):
    return Net(sys.modules["torch"].tensor([net.value for net in nets]))

def square(net):
    return Net((net.value ** 2, __name__, multiprocessing.parent_process() is not None))

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(*pool.submit(square, Net(8)).result(50).value)
    from torch.utils.data import DataLoader
    loader = DataLoader(Squares(), batch_size=2, num_workers=1, timeout=50,
                        collate_fn=together, multiprocessing_context="spawn")
    print([batch.value.tolist() for batch in loader])
"""


def test_spawned_workers_find_what_the_script_defines(launch, write_script):
    """Other ways to start processes: tests/foreign/programs/children.py."""
    launched = launch(write_script(WORKERS))
    assert launched.verdict(60).kind == "done", launched.everything_said()
    assert launched.log(0).splitlines() == ["64 __mp_main__ True", "[[0, 1], [4, 9]]"]


@pytest.mark.parametrize(
    ("leave", "code", "kind"),
    [
        ("sys.exit(False)", 0, "done"),
        ("sys.exit(300)", 44, "exit"),
        ("sys.exit(-1)", 255, "exit"),
        ("sys.exit('why')", 1, "exit"),
        ("raise KeyboardInterrupt", 1, "exception"),
        ("import atexit; atexit.register(os._exit, 4)", 4, "exit"),
    ],
)
def test_exit_codes_are_those_of_python(launch, write_script, leave, code, kind):
    launched = launch(write_script(f"import os, sys\n{leave}"))
    verdict = launched.verdict()
    exit_code = verdict.first.exit_code if verdict.first else 0
    assert (verdict.kind, exit_code) == (kind, code)
    if "why" in leave:
        assert launched.log(0) == "why\n"
        assert verdict.message.endswith("exited with code 1: why")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import argparse\nargparse.ArgumentParser('PROG').parse_args(['--lr'])",
            "exited with code 2: the log ends with 'PROG: error: unrecognized arguments: --lr'",
        ),
        ("print('= 1 failed =')\nexit(1)", "exited with code 1: the log ends with '1 failed'"),
        ("breakpoint()", "bdb.BdbQuit"),
        ("input()", "ranks have no keyboard: give the value as an argument, after --"),
    ],
    ids=["argparse", "pytest", "breakpoint", "input"],
)
def test_the_verdict_has_the_reason_that_the_log_ends_with(launch, write_script, source, reason):
    launched = launch(write_script(source))
    assert launched.verdict().message.endswith(reason)


def test_a_crash_shows_where_the_programs_calls_end(launch, write_script):
    launched = launch(write_script("import os\nos.abort()"))
    launched.verdict()
    calls = [line for line in launched.log(0).splitlines() if line.startswith("  File ")]
    assert "the_program_is_above_and_hpcdist_below" in calls[1]


def test_an_import_that_the_script_can_do_without_is_left_to_it(launch, write_script, tmp_path):
    write_script("raise ImportError('broken here')", "pandas.py")
    script = write_script(
        "try:\n    import PIL.not_there\nexcept ImportError:\n    print('without')\n"
        "try:\n    import pandas\nexcept ImportError as error:\n    print(error)\n"
    )
    launched = launch(script)
    assert launched.verdict().kind == "done"
    assert launched.log(0) == "without\nbroken here\n"


def test_modules_of_the_users_folder_do_not_shadow_those_of_the_agent(
    submit, write_script, tmp_path, monkeypatch
):
    for name in ("random", "queue", "socket", "json", "torch", "submitit", "hpcdist"):
        write_script("raise SystemExit('the wrong one')", f"{name}.py")
    monkeypatch.chdir(tmp_path)
    script = write_script("import os\nprint(os.getcwd())", "code/script.py")
    launched = submit(script, nodes=2)
    assert launched.verdict().kind == "done", launched.everything_said()
    assert launched.logs() == [f"{tmp_path}\n"] * 2
