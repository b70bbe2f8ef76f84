"""A script runs in a rank as `python script.py args` would run it."""

import json
import subprocess
import sys

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


def test_a_script_finds_what_python_would_give_it(launch, write_script):
    script = write_script(TELL, 'sp ace/it\'s "quoted"/übung/模型/-new\nline.py')
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
import multiprocessing

class Net:
    def __init__(self, value):
        self.value = value

def square(net):
    return Net((net.value ** 2, __name__, multiprocessing.parent_process() is not None))

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(*pool.submit(square, Net(8)).result(50).value)
"""


def test_spawned_workers_find_what_the_script_defines(launch, write_script):
    """Other ways to start processes: tests/foreign/programs/children.py."""
    launched = launch(write_script(WORKERS))
    assert launched.verdict(60).kind == "done", launched.everything_said()
    assert launched.log(0) == "64 __mp_main__ True\n"


def test_what_python_does_for_a_script_is_done(launch, write_script):
    """An import it can do without is left to it, and it may call itself as deeply."""
    write_script("raise ImportError('broken here')", "pandas.py")
    script = write_script(
        "import sys\n"
        "def count(depth=2):\n"  # the module's frame is the first
        "    try:\n        return count(depth + 1)\n"
        "    except RecursionError:\n        return depth\n"
        "try:\n    import PIL.not_there\nexcept ImportError:\n    print('without')\n"
        "try:\n    import pandas\nexcept ImportError as error:\n    print(error)\n"
        "print(count() >= 1000, sys.stdin.name, sys.stdout.name, sys.stderr.name)\n"
        "sys.__stdout__.write('as ever\\n')\n"
        "sys.exit(False)"
    )
    launched = launch(script)
    assert launched.verdict().kind == "done"
    streams = "True <stdin> <stdout> <stderr>"
    assert launched.log(0).splitlines() == ["without", "broken here", streams, "as ever"]


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
