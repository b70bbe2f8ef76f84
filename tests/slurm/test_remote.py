"""A laptop that reaches the cluster's login node by ssh: a real sshd before the real Slurm."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
from cluster_user import log
from harness import run_command
from login_node import LoginNode, missing_programs

from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import Run

NOISE = "echo welcome to the cluster; echo maintenance on monday >&2"
LIMIT_S = 90


@pytest.fixture
def login(slurm, missing):
    if lacking := missing_programs():
        missing(lacking)
    variables = {name: slurm.environment[name] for name in ("SLURM_CONF", "PATH")}
    node = LoginNode(variables=variables, profile=NOISE)
    node.install()
    node.start()
    yield node
    node.close()


class Laptop:
    """A work tree, and commands in it; nothing of Slurm is there."""

    def __init__(self, folder, login, command_process):
        self.folder, self._process = folder / "work", command_process
        self.runs = self.folder / "runs"
        self.there = login.home / "hpcdist" / "work" / "runs"
        for path in (self.folder, folder / "bin"):
            path.mkdir()
        for name in ("git", "ssh", "rsync", "env", "bash", "sh"):
            os.symlink(shutil.which(name), folder / "bin" / name)
        self.environment = {
            "PATH": str(folder / "bin"),
            "HPCDIST_SSH": login.ssh,
            "HOME": str(folder),
            "HPCDIST_TEST_MARK": os.environ["HPCDIST_TEST_MARK"],
        }
        subprocess.run(["git", "init", "-q"], cwd=self.folder, check=True)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "hpcdist", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments, code=0):
        where = {"cwd": self.folder, "environment": self.environment, "limit_s": LIMIT_S}
        done = run_command(self._process, arguments, **where)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    def states(self, verb, *arguments):
        """By run, as a command says in JSON."""
        found = json.loads(self(verb, *arguments, "--json")[0])
        return {one["run"]: one["state"] for one in found}


@pytest.fixture
def laptop(tmp_path, login, command_process):
    return Laptop(tmp_path, login, command_process)


PROGRAM = """\
#!/bin/bash
cat data.txt ignored/big
[ "$1" = serve ] || exit $1
exec python3 -u -c '
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print(server.server_port)
server.serve_forever()
'
"""


def test_a_laptop_does_with_runs_what_the_login_node_does(laptop, slurm):
    profiles = laptop("cluster", "detect", "--host", "login")[0]
    host = "scheduler: slurm\n    host: login"
    laptop.write("hpcdist.yaml", profiles.replace("scheduler: slurm", host))
    assert re.search(r"pass +controller", laptop("doctor", "--no-job")[0])
    laptop.write("program", PROGRAM)
    laptop.write("data.txt", "sent along\n" * 9999)
    laptop.write(".gitignore", "ignored\nruns\n")
    there = laptop.there.parent / "ignored"
    there.mkdir(parents=True)
    (there / "big").write_text("lies there\n")

    size = ("submit", "--no-python", "./program", "--gpus", "1", "--set", "launch.max_restarts=0")
    first = laptop(*size, "--", "0")[0].strip()
    assert (laptop.there / first / "spec.json").exists()
    assert read_remote(Run(laptop.runs / first)).host == "login"
    out, err = laptop("logs", first, "--follow")
    assert out.splitlines()[-2:] == ["sent along", "lies there"]
    assert f"run {first}: done" in err
    assert "welcome" not in out + err
    assert "lies there" in laptop(*size, "--wait", "--", "7", code=1)[0]
    assert [*laptop.states("summary", "last").values()] == ["failed"]

    second = laptop(*size, "--", "serve")[0].strip()
    slurm.wait_for(lambda: log(Run(laptop.there / second)).count("\n") > 10_000)
    assert laptop.states("status", second) == {second: "running"}
    (where,) = json.loads(laptop("stacks", second, "--json")[0])["ranks"]
    assert (where["node"], where["of"]["state"]) == (0, "S")
    port = log(Run(laptop.there / second)).split()[-1]
    with laptop.start("forward", second, port, "--port", "0") as process:
        said = [process.stderr.readline()]
        while said[-1] and "http" not in said[-1]:
            said.append(process.stderr.readline())
        address = re.search(r"http://127.0.0.1:\d+", said[-1])
        assert address, said
        with urllib.request.urlopen(f"{address[0]}/data.txt", timeout=LIMIT_S) as page:
            assert page.read() == b"sent along\n" * 9999
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "cancelled" in laptop("cancel", "last")[1]
    assert not slurm.queue()
    states = {first: "done", second: "cancelled"}
    assert laptop.states("runs").items() >= states.items()


def test_a_submission_whose_connection_breaks_while_sbatch_is_at_work_is_made_once(
    laptop, slurm, login
):
    gate = login.folder / "gate"
    slow = f"[ $1 = --version ] || touch {gate}.came; while [ -e {gate}.came ] && [ ! -e {gate} ]"
    laptop.write("program", "#!/bin/bash\nsleep 300\n")
    words = ("submit", "--host", "login", "--no-python", "./program", "--gpus", "1")
    with slurm.replacing("sbatch", f'{slow}; do sleep 0.05; done; exec {{}} "$@"'):
        path = slurm.environment["PATH"]
        login.profile(f'{login.exports}\nexport PATH="{path}"\n{NOISE}')
        process = laptop.start(*words)
        slurm.wait_for((gate.with_suffix(".came")).exists)
        login.break_connections()
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 3
        assert "it is not known whether the job was submitted" in err
        gate.touch()
        out, err = laptop(*words)
        assert "it is not submitted again" in err
        assert len(slurm.queue()) == 1
        assert read_remote(Run(laptop.runs / out.strip())).host == "login"
        assert laptop(*words)[0] != out
        assert len(slurm.queue()) == 2
    laptop("cancel", *(path.name for path in laptop.there.glob("program-*")), "--host", "login")
