"""What a test cluster looks like: its nodes, its networks, its ports and its folders."""

import dataclasses
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "loopback"
NAMESPACES = "namespaces"

NETWORKS = {
    LOOPBACK: "node names are loopback addresses, which resolve by themselves",
    NAMESPACES: "each node has its own network, hostname and /etc/hosts",
}


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster to boot; crosses to the supervisor as JSON."""

    folder: str
    """Holds all that the cluster writes; a short path, as sockets lie in it."""
    network: str = LOOPBACK
    num_nodes: int = 4
    num_cpus: int = 4
    """Per node."""
    num_gpus: int = 2
    """Per node."""
    memory_mib: int = 16_000
    """Per node; said to Slurm, never enforced."""
    databases: str | None = None
    """A folder in which the first of several clusters keeps a copy of its database for the others;
    None: each makes its own."""

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))

    @property
    def path(self):
        return Path(self.folder)

    @property
    def in_namespaces(self):
        return self.network == NAMESPACES

    @property
    def user(self):
        return pwd.getpwuid(os.getuid()).pw_name

    @property
    def name_pattern(self):
        """The names of all nodes, as Slurm writes them."""
        stem = "127.0.1." if self.network == LOOPBACK else "n"
        return f"{stem}[1-{self.num_nodes}]"

    @property
    def nodes(self):
        stem = self.name_pattern.partition("[")[0]
        return [f"{stem}{number}" for number in range(1, self.num_nodes + 1)]

    @property
    def slurm_conf(self):
        return self.path / "slurm.conf"

    @property
    def munge_socket(self):
        return self.path / "munge.sock"

    @property
    def database_socket(self):
        return self.path / "db.sock"

    def slurmd_log(self, node):
        return self.path / "log" / f"slurmd.{node}.log"

    def hosts_file(self, node):
        """What lies over /etc/hosts on a node, or on the login node, of namespaces."""
        return self.path / "hosts" / node


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The TCP ports of a cluster's daemons."""

    controller: int
    accounting: int
    database: int
    first_node: int

    @classmethod
    def from_base(cls, base):
        """Consecutive ones; the nodes' come last."""
        return cls(controller=base, accounting=base + 1, database=base + 2, first_node=base + 3)
