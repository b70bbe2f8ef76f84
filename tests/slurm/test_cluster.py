"""The cluster that the other tests run on: were it wrong, they would prove nothing."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import processes
from slurm_cluster.cluster import Cluster
from slurm_cluster.needs import missing_programs
from slurm_cluster.supervisor import FIRST_PORT_IN_NAMESPACES

LONG = "exec sleep 300"


def processes_of(folder):
    """Pids of all that was started with the configuration of the cluster in this folder."""
    config = f"{folder}/slurm.conf"
    return {pid for pid in processes.all_pids() if processes.variable(pid, "SLURM_CONF") == config}


@pytest.fixture
def own_cluster(missing, databases):
    """One that the test may end as it likes."""
    if lacking := missing_programs():
        missing(lacking)
    cluster = Cluster(num_nodes=1, databases=databases)
    cluster.start()
    yield cluster
    with contextlib.suppress(BrokenPipeError):
        cluster.stop()


def test_four_nodes_are_idle(slurm):
    assert slurm.nodes == ["127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4"]
    assert slurm.node_states() == dict.fromkeys(slurm.nodes, "idle")


def test_names_of_the_second_cluster_do_not_resolve(slurm_names):
    words = ("srun", "--nodes=4", "--ntasks=4", "bash", "-c")
    script = "getent hosts $SLURMD_NODENAME || echo $SLURMD_NODENAME"
    done = slurm_names.run(*words, script)
    assert sorted(done.stdout.splitlines()) == ["n1", "n2", "n3", "n4"]


def test_a_job_sees_the_gpus_that_it_asked_for(slurm):
    words = ("srun", "--nodes=2", "--ntasks=2", "--gpus-per-node=2", "printenv")
    done = slurm.run(*words, "CUDA_VISIBLE_DEVICES")
    assert done.stdout.split() == ["0,1", "0,1"]


def test_two_jobs_on_one_node_get_different_gpus(slurm, tmp_path):
    seen = [tmp_path / "first", tmp_path / "second"]
    options = ("--gpus-per-node=1", "--nodelist=127.0.1.3")
    jobs = [
        slurm.submit(f"printenv CUDA_VISIBLE_DEVICES > {file}\n{LONG}", *options) for file in seen
    ]
    slurm.wait_for(lambda: all(file.exists() and file.read_text() for file in seen))
    slurm.run("scancel", *jobs)
    assert sorted(file.read_text().strip() for file in seen) == ["0", "1"]


def test_a_killed_node_takes_its_tasks_with_it_and_comes_back(slurm, tmp_path):
    pids = tmp_path / "pids"
    task = f"setsid sleep 300 & echo $! >> {pids}; wait"
    step = f"srun --nodes=2 --ntasks=2 bash -c '{task}'"
    job = slurm.submit(step, "--nodes=2", "--no-requeue", "--nodelist=127.0.1.[1-2]")
    slurm.wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    slurm.kill_node("127.0.1.2")
    assert [processes.is_zombie(int(pid)) for pid in pids.read_text().split()].count(True) == 1
    slurm.give_up_node("127.0.1.2")
    assert slurm.node_states()["127.0.1.2"].startswith("down")
    assert slurm.wait_for_end(job) == "NODE_FAIL"
    slurm.revive_node("127.0.1.2")
    slurm.wait_until_idle()


def test_a_silent_controller_answers_after_it(slurm):
    with slurm.silent_controller(), pytest.raises(subprocess.TimeoutExpired):
        slurm.run("squeue", timeout=1)
    assert slurm.queue() == []


def test_programs_can_fail_or_be_missing(slurm):
    with slurm.failing("sacct", "accounting is disabled"):
        done = slurm.run("sacct", check=False)
    assert (done.returncode, done.stderr) == (1, "sacct: error: accounting is disabled\n")
    with slurm.without("sbatch", "srun"):
        found = slurm.run("sh", "-c", "command -v sinfo sbatch srun", check=False)
    assert [Path(line).name for line in found.stdout.splitlines()] == ["sinfo"]
    assert slurm.run("sh", "-c", "command -v sbatch").stdout


def test_settings_are_changed_and_come_back(slurm):
    def array_size():
        config = slurm.run("scontrol", "show", "config").stdout
        return next(line.split()[-1] for line in config.splitlines() if "MaxArraySize" in line)

    with slurm.settings(MaxArraySize=7):
        slurm.wait_for(lambda: array_size() == "7")
    slurm.wait_for(lambda: array_size() == "31")


def test_what_a_test_leaves_is_found_and_made_good(slurm, tmp_path):
    pid = tmp_path / "pid"
    job = slurm.submit(f"trap '' TERM; echo $$ > {pid}; while sleep 1; do :; done")
    slurm.wait_for(lambda: pid.exists() and pid.read_text())
    slurm.run("scontrol", "update", "nodename=127.0.1.3", "state=drain", "reason=test")
    slurm.stop_controller()
    slurm.kill_node("127.0.1.4")
    assert [left.id for left in slurm.restore(patience_s=0.5)] == [job]
    assert slurm.node_states() == dict.fromkeys(slurm.nodes, "idle")
    assert slurm.queue() == []
    assert processes.is_zombie(int(pid.read_text()))


def slurmd_pid(cluster, node):
    """Of the process itself, not of its steps."""
    command = b"\0".join([b"slurmd", b"-D", b"-N", node.encode(), b""])
    (pid,) = (
        pid for pid in processes_of(cluster.spec.folder) if processes.command_line(pid) == command
    )
    return pid


def test_nodes_that_have_ended_or_give_no_answer_are_made_good(slurm):
    ended, silent = (slurmd_pid(slurm, node) for node in slurm.nodes[1:3])
    os.kill(ended, signal.SIGKILL)
    os.kill(silent, signal.SIGSTOP)
    # What the controller finds out by itself after a while.
    slurm.run("scontrol", "update", f"nodename={slurm.nodes[2]}", "state=noresp")
    assert slurm.node_states()[slurm.nodes[2]] == "idle*"
    assert slurm.restore(patience_s=0.5) == []
    assert slurm.node_states() == dict.fromkeys(slurm.nodes, "idle")
    assert {slurmd_pid(slurm, node) for node in slurm.nodes}.isdisjoint({ended, silent})
    assert slurm.run("srun", "--nodes=4", "--ntasks=4", "true").returncode == 0


def test_nodes_in_namespaces_have_hostnames_and_networks_of_their_own(slurm_netns):
    names = slurm_netns.run("srun", "--nodes=4", "--ntasks=4", "hostname").stdout.split()
    assert sorted(names) == ["n1", "n2", "n3", "n4"]
    assert "10.77.0.2/24" in slurm_netns.run("ip", "-4", "-o", "address", node="n2").stdout
    for node in slurm_netns.nodes:
        addresses = slurm_netns.run("ip", "-4", "-o", "address", "show", "docker0", node=node)
        assert "172.17.0.1/16" in addresses.stdout


def reaches(cluster, source, target):
    """Whether a connection to the target's slurmd can be made."""
    port = FIRST_PORT_IN_NAMESPACES + 3
    connect = ("timeout", "1", "bash", "-c", f"</dev/tcp/{target}/{port}")
    return cluster.run(*connect, node=source, check=False).returncode == 0


def test_a_node_whose_link_is_cut_is_not_reached_and_goes_on(slurm_netns):
    job = slurm_netns.submit(LONG, "--nodelist=n2", "--no-requeue")
    slurm_netns.wait_for_state(job, "RUNNING")
    assert reaches(slurm_netns, "n1", "n2")
    slurm_netns.cut_link("n2")
    assert not reaches(slurm_netns, "n1", "n2")
    assert reaches(slurm_netns, "n1", "n3")
    assert reaches(slurm_netns, "n2", "n2")
    slurm_netns.mend_link("n2")
    slurm_netns.wait_for(lambda: reaches(slurm_netns, "n1", "n2"))
    assert slurm_netns.job_state(job) == "RUNNING"
    slurm_netns.run("scancel", job)


def test_a_killed_node_in_namespaces_comes_back_with_its_network(slurm_netns):
    slurm_netns.kill_node("n3")
    assert not reaches(slurm_netns, "n1", "n3")
    slurm_netns.revive_node("n3")
    slurm_netns.wait_for(lambda: reaches(slurm_netns, "n1", "n3"))


def test_own_names_can_be_loopback_addresses(slurm_netns):
    def address_of(name, node):
        return slurm_netns.run("getent", "ahostsv4", name, node=node).stdout.split()[0]

    with slurm_netns.own_names_are_loopback():
        assert address_of("n2", node="n2") == "127.0.1.1"
        assert address_of("n2", node="n1") == "10.77.0.2"
    assert address_of("n2", node="n2") == "10.77.0.2"


def test_two_clusters_at_once_do_not_meet_and_nothing_is_left_of_one_that_is_stopped(
    slurm, own_cluster
):
    assert slurm.spec.folder != own_cluster.spec.folder
    own_cluster.wait_for_state(own_cluster.submit("setsid sleep 300 & wait"), "RUNNING")
    assert slurm.queue() == []
    assert own_cluster.node_states() == {"127.0.1.1": "mixed"}
    assert processes_of(own_cluster.spec.folder)
    own_cluster.stop()
    assert not processes_of(own_cluster.spec.folder)
    assert not own_cluster.spec.path.exists()


_KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../support"]
from slurm_cluster.cluster import Cluster
cluster = Cluster(sys.argv[2], num_nodes=1, databases=sys.argv[3])
cluster.start()
print(cluster.spec.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("network", ["loopback", "namespaces"])
def test_nothing_is_left_of_a_cluster_whose_tests_were_killed(
    slurm, slurm_netns, databases, network
):
    package = str(Path(__file__).parent)
    words = (sys.executable, "-c", _KILLED, package, network, databases)
    killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=150)
    assert killed.returncode == -signal.SIGKILL
    folder = Path(killed.stdout.strip())
    slurm.wait_for(lambda: not processes_of(folder) and not folder.exists())


def test_a_cluster_that_does_not_boot_says_what_its_daemons_said(
    missing, monkeypatch, databases, tmp_path
):
    if lacking := missing_programs():
        missing(lacking)
    slurmd = tmp_path / "slurmd"
    slurmd.write_text("#!/bin/sh\necho there is no room in this node\nexit 4\n")
    slurmd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cluster = Cluster(num_nodes=1, databases=databases)
    with pytest.raises(RuntimeError, match=r"(?s)slurmd.* ended with 4.*no room in this node"):
        cluster.start()
    assert not cluster.spec.path.exists()


def test_the_command_runs_on_the_login_node(slurm_netns, hpcdist):
    answer = hpcdist(slurm_netns, "submit", "--scheduler=slurm", "nothing.py", check=False)
    assert (answer.returncode, "nothing.py" in answer.stderr) == (2, True)
