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
    node = LoginNode(
        variables={
            "SLURM_CONF": str(slurm.spec.slurm_conf),
            "PATH": f"{slurm.spec.folder}/bin:{slurm.environment['PATH']}",
        },
        profile=NOISE,
    )
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


def test_a_laptop_does_with_runs_what_the_login_node_does(laptop, slurm, login):
    laptop("runs", "--host", "login")
    laptop.write("hpcdist.yaml", "clusters: {far: {scheduler: slurm, host: login}}\n")
    program = "#!/bin/bash\ncat data.txt ignored/big; echo $1; [ -e {} ] || sleep ${{2:-0}}\n"
    laptop.write("program", program.format(laptop.there.parent / "go"))
    laptop.write("data.txt", "sent along\n")
    laptop.write(".gitignore", "ignored\nruns\n")
    there = laptop.there.parent / "ignored"
    there.mkdir(parents=True)
    (there / "big").write_text("lies there\n")

    size = ("submit", "--no-python", "./program", "--gpus", "1")
    first = laptop(*size, "--", "one")[0].strip()
    assert (laptop.there / first / "spec.json").exists()
    assert read_remote(Run(laptop.runs / first)).host == "login"
    laptop("watch", first)
    out, err = laptop("logs", first, "--follow")
    assert out.splitlines() == ["sent along", "lies there", "one"]
    assert f"run {first}: done" in err
    assert "welcome" not in out + err

    second = laptop(*size, "--", "two", "300")[0].strip()
    assert laptop.states("status", second)[second] in {"pending", "running"}
    slurm.wait_for(lambda: "two" in log(Run(laptop.there / second)))
    (where,) = json.loads(laptop("stacks", second, "--json")[0])["ranks"]
    assert (where["node"], where["of"]["state"]) == (0, "S")
    assert "cancelled" in laptop("cancel", "last")[1]
    both = {first: "done", second: "cancelled"}
    assert laptop.states("runs") == laptop.states("summary") == both
    (laptop.there.parent / "go").touch()
    out, err = laptop("resume", second, "--wait")
    assert out.splitlines() == ["[rank 0] sent along", "[rank 0] lies there", "[rank 0] two"]
    assert f"run {second}: done" in err
    assert laptop.states("summary", second) == {second: "done"}


def test_a_submission_whose_connection_breaks_is_made_once(laptop, slurm, login):
    """It breaks while sbatch is at work, and again when the laptop is gone."""
    gate = login.folder / "gate"
    sbatch = subprocess.check_output(["which", "sbatch"], text=True, env=slurm.environment).strip()
    wrapper = login.home / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"#!/bin/sh\n[ $1 = --version ] || touch {gate}.came\n"
        f'while [ -e {gate}.came ] && [ ! -e {gate} ]; do sleep 0.05; done\nexec {sbatch} "$@"\n'
    )
    wrapper.chmod(0o755)
    login.profile(f'{login.exports}\nexport PATH="{wrapper.parent}:$PATH"\n{NOISE}')
    laptop.write("program", "#!/bin/bash\nsleep 300\n")
    words = ("submit", "--host", "login", "--no-python", "./program", "--gpus", "1")

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

    # The laptop is gone before it hears: the same command goes on from there.
    gate.unlink()
    gate.with_suffix(".came").unlink()
    process = laptop.start(*words)
    slurm.wait_for((gate.with_suffix(".came")).exists)
    process.kill()
    process.wait()
    gate.touch()
    process.communicate()  # its ssh waits for the submission there
    slurm.wait_for(lambda: len(slurm.queue()) == 2, 20)
    out, err = laptop(*words)
    assert "it is not submitted again" in err
    assert len(slurm.queue()) == 2
    third = laptop(*words)[0].strip()
    assert third != out.strip()
    assert len(slurm.queue()) == 3
    laptop("cancel", *(path.name for path in laptop.there.glob("program-*")), "--host", "login")


def test_sweeps_profiles_and_checks_work_from_a_laptop(laptop, slurm, login):
    profiles = laptop("cluster", "detect", "--host", "login")[0]
    host = "scheduler: slurm\n    host: login"
    laptop.write("hpcdist.yaml", profiles.replace("scheduler: slurm", host))
    out, _ = laptop("doctor", "--no-job")
    assert re.search(r"pass +controller", out)

    laptop.write("program", "#!/bin/bash\necho $1 $HPCDIST_SUBMIT_DIR; exit $1\n")
    words = ("submit", "--no-python", "./program", "--gpus", "1", "--set", "launch.max_restarts=0")
    sweep = laptop(*words, "--repeat", "2", "--", "0")[0].splitlines()[0]
    laptop("watch", sweep)
    runs = [f"{sweep}-000", f"{sweep}-001"]
    slurm.wait_for(lambda: all((laptop.there / run / "verdict.json").exists() for run in runs))
    assert laptop.states("runs") == dict.fromkeys(runs, "done")
    assert f"{sweep}: 2 runs, 2 done" in laptop("status", sweep)[0]
    assert f"0 {laptop.there.parent}" in laptop("logs", runs[1])[0]

    out, err = laptop(*words, "--wait", "--", "7", code=1)
    assert f"7 {laptop.there.parent}" in out
    assert "failed" in err
    assert [*laptop.states("summary", "last").values()] == ["failed"]


SERVES = """\
#!/bin/bash
exec python3 -u -c '
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print(server.server_port)
server.serve_forever()
'
"""


def test_nodes_are_held_for_a_laptop_and_a_port_there_is_here(laptop, slurm, login):
    laptop.write("hpcdist.yaml", "clusters: {far: {scheduler: slurm, host: login}}\n")
    laptop("runs", "--host", "login")
    laptop.write("serves", SERVES)
    laptop.write("page.txt", "from the node\n" * 9999)
    dev = laptop("dev", "--gpus", "1")[0].strip()
    words = ("--in", "dev", "--no-python", "./serves", "--gpus", "1", "--detach")
    run = laptop("submit", *words)[0].strip()
    slurm.wait_for(lambda: log(Run(laptop.there / run)).strip())
    port = log(Run(laptop.there / run)).strip()
    with laptop.start("forward", run, port, "--port", "0") as process:
        said = [process.stderr.readline()]
        while said[-1] and "http" not in said[-1]:
            said.append(process.stderr.readline())
        address = re.search(r"http://127.0.0.1:\d+", said[-1])
        assert address, said
        for _ in range(2):
            with urllib.request.urlopen(f"{address[0]}/page.txt", timeout=LIMIT_S) as page:
                assert page.read() == b"from the node\n" * 9999
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert slurm.queue() == [Run(laptop.there / dev).read_job_id()]
    laptop("cancel", dev)
    assert Run(laptop.there / run).read_verdict().state == "cancelled"
