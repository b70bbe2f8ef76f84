"""The configuration files of a cluster's daemons, as text."""

import socket

# What Slurm waits for by default is minutes; tests wait for seconds.
_QUICK = {
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
}
# Many nodes on one machine, without cgroups, and without being root.
_UNPRIVILEGED = {
    "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "task=1",
    "MailProg": "/bin/true",
    "MpiDefault": "none",
}
_SCHEDULING = {
    "SchedulerType": "sched/backfill",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "DefMemPerCPU": 1000,
    "GresTypes": "gpu",
    # A node that was given up stays so: an answer that it gave before its loss may come after.
    "ReturnToService": 1,
    "MaxArraySize": 31,  # small, so that splitting a sweep takes few points
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
}
# Only `high` preempts, and only `low` is preempted.
_PARTITIONS = {
    "main": "Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF",
    "short": "MaxTime=5 PriorityTier=1 PreemptMode=OFF",
    "low": "MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "high": "MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF",
}
# Accounts and QOS that are known; any other is refused. Jobs that name none get the first of each.
ACCOUNTS = ("research", "course")
QOSES = ("normal", "urgent")

LOGIN_NODE = "login"
LOGIN_ADDRESS = "10.77.0.254"
NETWORK_BITS = 24
CONTAINER_BRIDGE_ADDRESS = "172.17.0.1"


def node_address(number):
    """Of a node in namespaces, counted from 1."""
    return f"10.77.0.{number}"


def node_ethernet_address(number):
    """Of the same node; the first byte says that no manufacturer gave it."""
    return f"02:00:00:00:00:{number:02x}"


def controller_host(spec):
    """Its hostname and address."""
    if spec.in_namespaces:
        return LOGIN_NODE, LOGIN_ADDRESS
    return socket.gethostname().partition(".")[0], "127.0.0.1"


def slurm_conf(spec, ports):
    settings = {
        **_site(spec, ports),
        **_accounting(spec, ports),
        **_SCHEDULING,
        **_UNPRIVILEGED,
        **_QUICK,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += _nodes(spec, ports)
    lines += [
        f"PartitionName={name} Nodes=ALL DefaultTime=10 State=UP {options}"
        for name, options in _PARTITIONS.items()
    ]
    return "\n".join(lines) + "\n"


def _site(spec, ports):
    host, address = controller_host(spec)
    folder = spec.path
    return {
        "ClusterName": "hpcdist",
        "SlurmctldHost": f"{host}({address})",
        "SlurmctldPort": ports.controller,
        "SlurmUser": spec.user,
        "SlurmdUser": spec.user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={spec.munge_socket}",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool/%n",
        "SlurmctldPidFile": folder / "run/slurmctld.pid",
        "SlurmdPidFile": folder / "run/slurmd.%n.pid",
        "SlurmctldLogFile": folder / "log/slurmctld.log",
        "SlurmdLogFile": folder / "log/slurmd.%n.log",
        "PlugStackConfig": folder / "plugstack.conf",
    }


def _accounting(spec, ports):
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": controller_host(spec)[1],
        "AccountingStoragePort": ports.accounting,
        # Towards slurmdbd AuthInfo is not read; this is where its munge socket is said.
        "AccountingStoragePass": spec.munge_socket,
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStorageEnforce": "associations,limits,qos",
    }


def _nodes(spec, ports):
    has = (
        f"CPUs={spec.num_cpus} RealMemory={spec.memory_mib} Gres=gpu:{spec.num_gpus} State=UNKNOWN"
    )
    if spec.in_namespaces:
        return [
            f"NodeName={name} NodeAddr={node_address(number)} Port={ports.first_node} {has}"
            for number, name in enumerate(spec.nodes, 1)
        ]
    host, local = controller_host(spec)
    names = spec.name_pattern
    address = local if names.startswith("n") else names
    last = ports.first_node + spec.num_nodes - 1
    place = f"NodeHostname={host} NodeAddr={address} Port=[{ports.first_node}-{last}]"
    return [f"NodeName={names} {place} {has}"]


def gres_conf(spec):
    """Terminals in the place of GPUs: any device file will do, and each node may have the same."""
    return f"Name=gpu File=/dev/tty[0-{spec.num_gpus - 1}]\n"


def slurmdbd_conf(spec, ports):
    host, address = controller_host(spec)
    return f"""\
AuthType=auth/munge
AuthInfo=socket={spec.munge_socket}
DbdHost={host}
DbdAddr={address}
DbdPort={ports.accounting}
SlurmUser={spec.user}
PidFile={spec.path}/run/slurmdbd.pid
LogFile={spec.path}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports.database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def database_conf(spec, ports):
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
port={ports.database}
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


def hosts(spec):
    """What /etc/hosts says on the nodes of namespaces."""
    addresses = {LOGIN_NODE: LOGIN_ADDRESS}
    addresses |= {name: node_address(number) for number, name in enumerate(spec.nodes, 1)}
    return "127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in addresses.items())


def files(spec, ports):
    """Text by path below the cluster's folder."""
    texts = {
        "slurm.conf": slurm_conf(spec, ports),
        "gres.conf": gres_conf(spec),
        "plugstack.conf": "",
        "slurmdbd.conf": slurmdbd_conf(spec, ports),
        "my.cnf": database_conf(spec, ports),
    }
    for node in [LOGIN_NODE, *spec.nodes] if spec.in_namespaces else []:
        texts[f"hosts/{node}"] = hosts(spec)
    return texts
