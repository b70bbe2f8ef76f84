"""`hpcdist dev` on this machine: one run after the other in what it holds."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from waiting import wait_for

WORK = """
import os, sys, time
print("torch" in sys.modules, os.environ["WORLD_SIZE"], os.environ.get("COLOUR"), flush=True)
import torch
import words
print(words.SAID, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def dev(hpcdist):
    """A dev run of one node with two ranks' room."""
    hpcdist.write("work.py", WORK)
    hpcdist.write("words.py", "SAID = 'first'\n")
    done = hpcdist("dev", "--local", "--gpus", "2", "--set", "launch.device=cpu", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["state"] == "running"
    yield told["run"]
    hpcdist("cancel", told["run"])


def state(hpcdist, name):
    (told,) = json.loads(hpcdist("status", name, "--json").stdout)
    return told["state"]


def log(run, rank=0):
    return (run / f"logs/rank-{rank:05d}.log").read_text().split("\n")


def test_runs_start_with_torch_and_the_files_as_they_are(hpcdist, dev):
    first = hpcdist("submit", "work.py", "--in", "dev", "--gpus", "2", "--", "0")
    assert first.returncode == 0, first.stderr
    hpcdist.write("words.py", "SAID = 'second'\n")
    second = hpcdist("submit", "work.py", "--in", dev, "--set", "environment.COLOUR=red", "--", "0")
    assert second.returncode == 0, second.stderr
    hpcdist.write("fails.py", "import torch\nraise ValueError('no')\n")
    failed = hpcdist("submit", "fails.py", "--in", dev)
    assert failed.returncode == 1
    assert "ValueError: no" in failed.stderr
    one, two = hpcdist.runs[1:3]
    assert [log(one)[0], log(one, 1)[0], log(two)[0]] == [*["True 2 None"] * 2, "True 1 red"]
    for run, word in ((one, "first"), (two, "second")):
        said, threads, wanted = log(run)[1].split()
        assert (said, threads) == (word, wanted)
    hpcdist.write(
        "fresh.py",
        "import os, sys\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        "print('torch' in sys.modules)\nimport torch\n",
    )
    fresh = hpcdist("submit", "fresh.py", "--in", dev)
    assert "[rank 0] False\n" in fresh.stdout
    warned = hpcdist("attach", "dev", "--", "sh", "-c", "kill -USR2 $$; echo lives on")
    assert warned.stdout == "lives on\n"
    server = hpcdist("attach", "dev", "--", "printenv", "HPCDIST_RANK_PID").stdout
    os.kill(int(server), signal.SIGUSR2)
    wait_for(lambda: "the time limit is near" in log(hpcdist.runs[0]))
    refused = hpcdist("submit", "work.py", "--in", dev, "--gpus", "3")
    assert refused.returncode == 2
    assert f"resources.gpus is 3, and {dev} has 2" in refused.stderr
    assert len(hpcdist.runs) == 5
    assert state(hpcdist, dev) == "running"


def test_what_waits_and_what_runs_is_ended_and_the_next_one_starts(hpcdist, dev):
    running = hpcdist.start(
        "submit", "work.py", "--in", dev, "--", "600", stdout=subprocess.PIPE, stderr=-1, text=True
    )
    assert running.stdout.readline().startswith("[rank 0]")
    waits = begin(hpcdist, dev)
    assert state(hpcdist, waits) == "pending"
    assert hpcdist("cancel", waits).returncode == 0
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    killed = begin(hpcdist, dev)
    run = hpcdist.runs[-1]
    wait_for(lambda: (run / "logs/rank-00000.log").exists() and log(run)[0] == "True 1 None")
    agent = json.loads((run / "launch/agent-00000.json").read_text())["process"]["pid"]
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: state(hpcdist, killed) == "lost")
    last = begin(hpcdist, dev)
    wait_for(lambda: state(hpcdist, last) == "running")
    behind = begin(hpcdist, hpcdist.folder / "runs" / dev, "--runs", "elsewhere")
    assert hpcdist("cancel", "dev").returncode == 0
    states = [state(hpcdist, run.name) for run in hpcdist.runs]
    assert states == [*["cancelled"] * 3, "lost", *["cancelled"] * 2]
    assert f"cancelled: {dev} ended before it began" in hpcdist("status", behind).stdout


def begin(hpcdist, dev, *more):
    done = hpcdist("submit", "work.py", "--in", dev, *more, "--detach", "--json", "--", "600")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["run"]


def test_the_first_node_says_which_run_begins_on_all(hpcdist):
    hpcdist.write("work.py", WORK)
    hpcdist.write("words.py", "SAID = ''\n")
    done = hpcdist("dev", "--local", "--nodes", "2", "--set", "launch.device=cpu")
    dev = done.stdout.strip()
    assert f"{dev} holds 2 nodes of this machine; it ends after 30 minutes without" in done.stderr
    first = begin(hpcdist, dev, "--nodes", "1")
    wait_for(lambda: state(hpcdist, first) == "running")
    second = begin(hpcdist, dev)
    (order,) = hpcdist.folder.glob(f"runs/{dev}/launch/orders/*-{second}.json")
    order.rename(order.with_name(f"0-{second}.json"))  # by a clock that is behind
    assert hpcdist("cancel", first).returncode == 0
    begun = hpcdist.folder / "runs" / second / "submitit/dev_1_log.out"
    wait_for(begun.exists)
    verdict = hpcdist.folder / "runs" / first / "verdict.json"
    assert begun.stat().st_mtime > verdict.stat().st_mtime
    assert hpcdist("cancel", dev).returncode == 0
    assert state(hpcdist, second) == "cancelled"


def test_it_ends_by_itself_when_nobody_uses_it(hpcdist):
    arguments = ("dev", "--local", "--set", "launch.device=cpu", "--idle", "0.05", "--json")
    done = hpcdist(*arguments)
    assert done.returncode == 0, done.stderr
    (run,) = hpcdist.runs
    wait_for(lambda: state(hpcdist, run.name) == "done")
    assert log(run)[1] == "it ends: 0.05 minutes without a run or a shell"
    refused = hpcdist("submit", "check", "--in", "dev")
    assert refused.returncode == 2
    assert "takes no runs" in refused.stderr


JUPYTER = f"""#!{sys.executable}
import http.server, json, os, pathlib, sys
if pathlib.Path("broken").exists():
    sys.exit("it has no kernel")
class Page(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + self.path.encode())
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
    told = {{"port": server.server_port, "token": oct(folder.stat().st_mode)}}
    (folder / f"jpserver-{{os.getpid()}}.json").write_text(json.dumps(told))
    server.serve_forever()
"""


def test_jupyter_has_its_page_here_and_ends_with_the_command_and_the_dev_run_goes_on(hpcdist):
    hpcdist.write("bin/jupyter-lab", JUPYTER).chmod(0o755)
    hpcdist.environment["PATH"] = f"{hpcdist.folder}/bin:{os.environ['PATH']}"
    command = ("dev", "--local", "--set", "launch.device=cpu", "--jupyter")
    process = hpcdist.start(*command, stdout=-1, stderr=-1, text=True)
    url = next(line for line in process.stderr if line.startswith("http://127.0.0.1:")).strip()
    with urllib.request.urlopen(url, timeout=60) as page:
        assert page.read() == b"/lab?token=0o40700"
    (told,) = hpcdist.folder.glob("runs/dev-*/launch/jupyter-*/jpserver-*.json")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for(lambda: not Path("/proc", told.stem.partition("-")[2]).exists())
    assert state(hpcdist, "dev") == "running"
    assert hpcdist("cancel", "dev").returncode == 0
    hpcdist.write("broken", "")
    failed = hpcdist(*command)
    assert failed.returncode == 2
    assert "error: jupyter-lab did not start: it has no kernel" in failed.stderr
    assert hpcdist("cancel", "dev").returncode == 0
