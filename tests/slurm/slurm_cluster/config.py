"""What a test cluster looks like: its nodes, ports and folders, and its daemons' configuration."""

import dataclasses
import os
import pwd
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "loopback"
"""Node names are loopback addresses, which resolve by themselves."""
NAMESPACES = "namespaces"
"""Each node has its own network, hostname and /etc/hosts."""
ADMINISTRATORS = "/usr/sbin:/sbin"
"""Where daemons lie, which not every user's PATH names."""
ACCOUNT = "research"
"""The only one: any other is refused, and any QOS but Slurm's own, normal."""
LOGIN_NODE = "login"
LOGIN_ADDRESS = "10.77.0.254"

_PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "sbatch", "srun", "squeue", "sacct", "sacctmgr"),
    *("scontrol", "sinfo", "scancel", "munged", "mariadbd", "mariadb-install-db", "mariadb"),
    *("setpriv", "unshare", "nsenter", "ip"),
)
_SETTINGS = {
    # What Slurm waits for by default is minutes; tests wait for seconds.
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,"
    "bf_interval=1,bf_continue",
    "KillWait": 10,
    "CompleteWait": 0,
    "SlurmdTimeout": 10,
    "SlurmctldTimeout": 10,
    "BatchStartTimeout": 10,
    "MessageTimeout": 10,
    "UnkillableStepTimeout": 20,
    "EpilogMsgTime": 1,
    # Many nodes on one machine, without cgroups, and without being root.
    "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "task=1",
    "MailProg": "/bin/true",
    "MpiDefault": "none",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    # Scheduling and accounting.
    "SchedulerType": "sched/backfill",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "DefMemPerCPU": 1000,
    "GresTypes": "gpu",
    # A node that was given up stays so: an answer that it gave before its loss may come after.
    "ReturnToService": 1,
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "ClusterName": "hpcdist",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "gres/gpu",
    "AccountingStorageEnforce": "associations,limits,qos",
}
# Only `high` preempts, and only `low` is preempted.
_PARTITIONS = {
    "main": "Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF",
    "low": "MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "high": "MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF",
}


def missing_programs():
    """What this machine lacks to boot a cluster, in one sentence, or None."""
    path = f"{os.environ.get('PATH', os.defpath)}:{ADMINISTRATORS}"
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return f"a real Slurm takes {', '.join(missing)}; `make test` says how to install them"
    if not Path("/dev/tty1").is_char_device():
        return "a real Slurm takes /dev/tty0 and /dev/tty1, which stand for GPUs"
    return None


@dataclass(kw_only=True)
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
    databases: str
    """A folder in which the first of several clusters keeps a copy of its database for others."""
    first_port: int = 6817
    """Of consecutive ones; in namespaces nobody else is there."""

    def __post_init__(self):
        self.path = Path(self.folder)
        self.in_namespaces = self.network == NAMESPACES
        self.user = pwd.getpwuid(os.getuid()).pw_name
        stem = "n" if self.in_namespaces else "127.0.1."
        self.nodes = [f"{stem}{number}" for number in range(1, self.num_nodes + 1)]
        self.controller = LOGIN_NODE, LOGIN_ADDRESS
        """Its hostname and address."""
        if not self.in_namespaces:
            self.controller = socket.gethostname().partition(".")[0], "127.0.0.1"
        self.num_ports = self.num_nodes + 3
        self.database_port = self.first_port + 1
        self.accounting_port = self.first_port + 2
        self.node_port = self.first_port + 3
        """Of the first node."""
        self.slurm_conf = self.path / "slurm.conf"
        self.munge_socket = self.path / "munge.sock"
        self.database_socket = self.path / "db.sock"

    def as_dict(self):
        return dataclasses.asdict(self)

    def slurmd_log(self, node):
        return self.path / "log" / f"slurmd.{node}.log"

    def hosts_file(self, node):
        """What lies over /etc/hosts on a node, or on the login node, of namespaces."""
        return self.path / "hosts" / node


def node_address(number):
    """Of a node in namespaces, counted from 1."""
    return f"10.77.0.{number}"


def slurm_conf(spec):
    host, address = spec.controller
    folder = spec.path
    settings = _SETTINGS | {
        "SlurmctldHost": f"{host}({address})",
        "SlurmctldPort": spec.first_port,
        "SlurmUser": spec.user,
        "SlurmdUser": spec.user,
        "AuthInfo": f"socket={spec.munge_socket}",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool/%n",
        "SlurmctldPidFile": folder / "run/slurmctld.pid",
        "SlurmdPidFile": folder / "run/slurmd.%n.pid",
        "SlurmctldLogFile": folder / "log/slurmctld.log",
        "SlurmdLogFile": folder / "log/slurmd.%n.log",
        "PlugStackConfig": folder / "plugstack.conf",
        "AccountingStorageHost": address,
        "AccountingStoragePort": spec.accounting_port,
        # Towards slurmdbd AuthInfo is not read; this is where its munge socket is said.
        "AccountingStoragePass": spec.munge_socket,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    # The memory is said to Slurm, and never enforced.
    has = f"CPUs={spec.num_cpus} RealMemory=16000 Gres=gpu:{spec.num_gpus} State=UNKNOWN"
    for number, name in enumerate(spec.nodes, 1):
        place = f"NodeHostname={host} NodeAddr={name} Port={spec.node_port + number - 1}"
        if spec.in_namespaces:
            place = f"NodeAddr={node_address(number)} Port={spec.node_port}"
        lines.append(f"NodeName={name} {place} {has}")
    for name, options in _PARTITIONS.items():
        lines.append(f"PartitionName={name} Nodes=ALL DefaultTime=10 State=UP {options}")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(spec):
    host, address = spec.controller
    return f"""\
AuthType=auth/munge
AuthInfo=socket={spec.munge_socket}
DbdHost={host}
DbdAddr={address}
DbdPort={spec.accounting_port}
SlurmUser={spec.user}
PidFile={spec.path}/run/slurmdbd.pid
LogFile={spec.path}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={spec.database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def database_conf(spec):
    """Small, and careless of its data: it lives as long as the tests."""
    return f"""\
[mariadbd]
user={spec.user}
datadir={spec.path}/db
socket={spec.database_socket}
pid-file={spec.path}/run/mariadbd.pid
log-error={spec.path}/log/mariadbd.log
tmpdir={spec.path}/run
bind-address=127.0.0.1
port={spec.database_port}
skip-name-resolve
skip-log-bin
performance_schema=OFF
innodb_buffer_pool_size=16M
innodb_log_file_size=8M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_doublewrite=0
key_buffer_size=1M
aria_pagecache_buffer_size=1M
max_connections=20
"""


def files(spec):
    """Text by path below the cluster's folder."""
    addresses = {LOGIN_NODE: LOGIN_ADDRESS}
    addresses |= {name: node_address(number) for number, name in enumerate(spec.nodes, 1)}
    hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in addresses.items())
    # To each node its own name is a loopback address, as in Debian.
    own = {name: hosts.replace(f"{addresses[name]} ", "127.0.1.1 ") for name in spec.nodes}
    return {
        "slurm.conf": slurm_conf(spec),
        # Terminals in the place of GPUs: any device file will do, and each node may have the same.
        "gres.conf": f"Name=gpu File=/dev/tty[0-{spec.num_gpus - 1}]\n",
        "plugstack.conf": "",
        "slurmdbd.conf": slurmdbd_conf(spec),
        "my.cnf": database_conf(spec),
        **{f"hosts/{name}": text for name, text in ({LOGIN_NODE: hosts} | own).items()},
    }
