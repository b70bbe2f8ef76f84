"""Nodes that are as good as machines: each with its own network, hostname and /etc/hosts.

The whole cluster lives in namespaces of its own, so that nothing of it shows outside:

    login (10.77.0.254) -- br0 -- link1 -- eth0 of n1 (10.77.0.1), and docker0 (172.17.0.1)
                               -- link2 -- eth0 of n2 (10.77.0.2), and docker0 (172.17.0.1)
"""

import os
import subprocess
from functools import cache

import psutil

from slurm_cluster import config, processes
from slurm_cluster.daemons import Daemons

_NODE_NAMESPACES = ("unshare", "--net", "--uts", "--mount")
# The node waits for its end of the link. docker0 is what many machines have: an interface with
# the same address on every node, by which no node reaches another.
_NODE_SCRIPT = """\
set -e
read -r go
hostname {node}
mount --bind {hosts} /etc/hosts
ip link set lo up
ip link add docker0 type bridge
ip address add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip address add {address}/24 dev eth0
ip link set eth0 up
exec slurmd -D -N {node}
"""
_TRIAL = (
    "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && hostname trial"
)


def enter_new():
    """The start of a command that runs in new namespaces, and gets SIGTERM when unshare ends."""
    command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    command.append("--kill-child=SIGTERM")
    if os.getuid():
        command += ["--user", "--map-current-user", "--keep-caps"]
    return command


def enter(pid):
    """The start of a command that runs in the namespaces of a process."""
    command = ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]
    return [*command, "--user", "--preserve-credentials"] if os.getuid() else command


@cache
def why_not_here():
    """What keeps this machine from namespaces, or None."""
    try:
        trial = subprocess.run(
            [*enter_new(), "sh", "-c", _TRIAL],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except OSError as error:
        return str(error)
    return trial.stderr.strip() or "unshare failed" if trial.returncode else None


class NamespacedDaemons(Daemons):
    """The daemons of a cluster in namespaces."""

    def __init__(self, spec):
        super().__init__(spec)
        self._networks = {}

    def make_network(self):
        """The login node's side; this process already is in namespaces of its own."""
        self.run("mount", "--bind", self.spec.hosts_file(config.LOGIN_NODE), "/etc/hosts")
        self.run("hostname", config.LOGIN_NODE)
        address = f"{config.LOGIN_ADDRESS}/24"
        for arguments in (
            "link set lo up",
            "link add br0 type bridge",
            f"address add {address} dev br0",
            "link set br0 up",
        ):
            self.run("ip", *arguments.split())

    def start_node(self, node):
        number = self._number(node)
        script = _NODE_SCRIPT.format(
            node=node,
            hosts=self.spec.hosts_file(node),
            address=config.node_address(number),
        )
        popen = self.start(
            f"slurmd.{node}", *_NODE_NAMESPACES, "bash", "-c", script, stdin=subprocess.PIPE
        )
        self.wait_until(f"{node} has a network", lambda: self._is_apart(popen.pid))
        self._networks[node] = processes.network_namespace(popen.pid)
        link = f"link{number}"
        # That of a killed node may not be gone yet.
        self.run("ip", "link", "delete", link, check=False)
        # Always the same, or others look for a node that comes back where it was before.
        ethernet = f"02:00:00:00:00:{number:02x}"
        peer = f"type veth peer name eth0 address {ethernet} netns {popen.pid}"
        self.run("ip", "link", "add", link, *peer.split())
        self.run("ip", "link", "set", link, "master", "br0", "up")
        popen.stdin.write(b"go\n")
        popen.stdin.close()

    def node_processes(self, node):
        """Pids of all that is in the node's network: in namespaces that is the node."""
        namespace = self._networks[node]
        return {pid for pid in psutil.pids() if processes.network_namespace(pid) == namespace}

    def cut_link(self, node):
        """No packet goes to the node or comes from it; its processes go on."""
        self.run("ip", "link", "set", f"link{self._number(node)}", "down")

    def mend_link(self, node):
        self.run("ip", "link", "set", f"link{self._number(node)}", "up")

    def _number(self, node):
        return self.spec.nodes.index(node) + 1

    def _is_apart(self, pid):
        here = processes.network_namespace("self")
        return processes.network_namespace(pid) not in (None, here)
