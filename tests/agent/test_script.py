"""A script runs in a rank as `python script.py args` would run it."""

import json
import os
import signal
import subprocess
import sys

import pytest

TELL = '''
"""A docstring."""
import atexit, json, os, signal, sys, threading

print(json.dumps({
    "name": __name__,
    "doc": __doc__,
    "file": __file__,
    "spec": __spec__,
    "package": __package__,
    "cached": __cached__,
    "annotations": __annotations__,
    "builtins": type(__builtins__).__name__,
    "loader": type(__loader__).__name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "globals": sorted(set(globals()) - {"__annotations__"}),
    "argv": sys.argv,
    "path": sys.path,
    "cwd": os.getcwd(),
    "stdin": sys.stdin.read(),
    "encoding": [sys.stdout.encoding, sys.stderr.encoding],
    "handlers": {
        number.name: str(signal.getsignal(number))
        for number in signal.valid_signals() - {signal.SIGQUIT}
        if isinstance(number, signal.Signals)
    },
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "threads": threading.active_count(),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
}, default=str))
'''

PROCESSES = """
import atexit, multiprocessing, os, pickle, sys, threading, time
from concurrent.futures import ProcessPoolExecutor

class Net:
    def __init__(self, value):
        self.value = value

class Squares:
    def __len__(self):
        return 4
    def __getitem__(self, number):
        return Net(number ** 2)

def together(nets):
    values = [net.value for net in nets]
    if "torch" not in sys.modules:
        return Net(values)
    return Net(sys.modules["torch"].tensor(values))  # it is sent in shared memory

def square(net):
    in_child = multiprocessing.parent_process() is not None
    return Net((net.value ** 2, __name__, in_child))

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Net(3))).value == 3
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            print(method, *pool.apply_async(square, (Net(7),)).get(50).value)
        if method == "spawn":
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                print("executor", *pool.submit(square, Net(8)).result(50).value)
    import torch
    from torch.utils.data import DataLoader
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=2, num_workers=1, timeout=50,
                            collate_fn=together, multiprocessing_context=method)
        print(method, [batch.value.tolist() for batch in loader])
    atexit.register(print, "at exit", flush=True)
    def late():
        time.sleep(0.2)
        print("thread")
    threading.Thread(target=late).start()
    print("end of main")
"""

PREPARES = """
import json, multiprocessing, sys
from multiprocessing import process, spawn

def later():
    import torch  # and so multiprocessing is imported before the rank is forked

if __name__ == "__main__":
    told = spawn.get_preparation_data("worker")
    told["authkey"] = told["authkey"].hex()
    aliases = [sys.modules[name].__dict__ is globals() for name in ("__main__", "__mp_main__")]
    print(json.dumps(told | {"me": process.current_process().name, "aliases": aliases}))
"""


@pytest.mark.parametrize(
    "name",
    ["plain.py", 'sp ace/it\'s "quoted".py', "übung/模型.py", "new\nline.py", "-dash.py"],
    ids=["plain", "quotes", "unicode", "newline", "dash"],
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
    expected["handlers"]["SIGUSR2"] = str(int(signal.SIG_IGN))  # as a warning, not as an end
    assert found == expected | {"cached": None, "globals": found["globals"]}
    assert set(expected["globals"]) == set(found["globals"])


def test_processes_threads_and_exit_handlers_work_as_in_a_script(launch, write_script):
    launched = launch(write_script(PROCESSES))
    verdict = launched.verdict(60)
    assert verdict.kind == "done", launched.everything_said()
    assert launched.log(0).splitlines() == [
        "fork 49 __main__ True",
        "spawn 49 __mp_main__ True",
        "executor 64 __mp_main__ True",
        "forkserver 49 __mp_main__ True",
        "fork [[0, 1], [4, 9]]",
        "spawn [[0, 1], [4, 9]]",
        "end of main",
        "thread",
        "at exit",
    ]


def test_spawned_processes_are_told_what_those_of_python_are(launch, write_script):
    script = write_script(PREPARES)
    command = [sys.executable, str(script), "a"]
    plain = subprocess.run(command, capture_output=True, check=True, timeout=150)
    expected = json.loads(plain.stdout)
    launched = launch(script, "a", gpus=2)
    assert launched.verdict().kind == "done", launched.everything_said()
    found = [launched.said(rank)[0] for rank in range(2)]
    assert len({one.pop("authkey") for one in [expected, *found]}) == 3
    assert found == [expected] * 2


@pytest.mark.parametrize(
    ("leave", "code", "kind"),
    [
        ("sys.exit()", 0, "done"),
        ("sys.exit(0)", 0, "done"),
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


def test_a_script_that_executes_itself_is_started_again(launch, write_script):
    again = "if 'AGAIN' not in os.environ: os.execve(sys.executable, sys.orig_argv, {'AGAIN': '1'})"
    launched = launch(write_script(f"import os, sys\n{again}\nprint(sys.argv[1:])"), "--lr", "1")
    assert launched.verdict().kind == "done"
    assert launched.log(0) == "['--lr', '1']\n"


def test_an_exception_hook_of_the_script_is_called(launch, write_script):
    launched = launch(
        write_script(
            "import sys\n"
            "sys.excepthook = lambda kind, error, tb: print('hook', kind.__name__, tb.tb_lineno)\n"
            "raise ValueError"
        )
    )
    assert launched.verdict().first.report.exception == "ValueError"
    assert launched.log(0) == "hook ValueError 3\n"


def test_an_import_that_the_script_can_do_without_is_left_to_it(launch, write_script, tmp_path):
    write_script("raise ImportError('broken here')", "pandas.py")
    script = write_script(
        "try:\n    import PIL.not_there\nexcept ImportError:\n    print('without')\n"
        "try:\n    import pandas\nexcept ImportError as error:\n    print(error)\n"
    )
    launched = launch(script)
    assert launched.verdict().kind == "done"
    assert launched.log(0) == "without\nbroken here\n"


def test_a_script_that_is_gone_when_the_ranks_start_fails_in_the_rank(launch, write_script):
    script = write_script("import torch")
    launched = launch(script, nodes=2, agents=[0])
    launched.agent_pid(0)
    script.unlink()
    launched.start_agent(1)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.first.report.exception) == ("exception", "FileNotFoundError")


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


def test_output_is_in_the_log_as_it_is_printed_whatever_it_holds(launch, write_script):
    script = write_script(
        "import os, signal, sys\n"
        "print('half a pair \\udcff, ü', end='')\n"
        "sys.stdout.flush()\n"
        "os.system('echo from a child')\n"
        "sys.stdout.buffer.write(b'\\xff\\n'); sys.stdout.flush()\n"
        "print('to stderr', file=sys.stderr)\n"
        "print('last words')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    launched = launch(script)
    launched.verdict()
    assert launched.run.log_file(0).read_bytes() == (
        "half a pair \\udcff, üfrom a child\n".encode() + b"\xff\nto stderr\nlast words\n"
    )
    assert os.stat(launched.run.log_file(0)).st_mode & 0o777 == 0o600
