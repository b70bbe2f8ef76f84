"""Slurm clusters for the session, and one of them whole and idle for each test: a job that a test
leaves is an error."""

import pytest
from made_once import session_folder
from slurm_cluster import config, namespaces
from slurm_cluster.cluster import Cluster

_PATIENCE_S = 30.0
"""For jobs whose work is done, and for nodes that come back."""


@pytest.fixture(scope="session")
def clusters():
    """Those of this process, by their networks; each is booted for the first test that needs it."""
    booted = {}
    yield booted
    for cluster in booted.values():
        cluster.stop()


@pytest.fixture
def cluster_of(missing, tmp_path_factory, clusters, command_process):
    """Call it with a network; one whose test leaves jobs or nodes behind is booted anew."""
    used = []

    def get(network):
        if lacking := config.missing_programs():
            missing(lacking)
        if network not in clusters:
            databases = str(session_folder(tmp_path_factory))
            cluster = Cluster(network, command_process, databases=databases)
            cluster.start()
            clusters[network] = cluster
        used.append(network)
        return clusters[network]

    yield get
    for network in used:
        try:
            clusters[network].order("start_ended_nodes")
            clusters[network].wait_until_idle(_PATIENCE_S)
        except BaseException:
            clusters.pop(network).stop()
            raise


@pytest.fixture
def slurm(cluster_of):
    """Four nodes with 4 CPUs and 2 GPUs each, called 127.0.1.1 to 127.0.1.4."""
    return cluster_of(config.LOOPBACK)


@pytest.fixture
def slurm_netns(cluster_of, missing):
    """Nodes n1 to n4, each with its own network, hostname and /etc/hosts; links can be cut."""
    if obstacle := namespaces.why_not_here():
        missing(f"this machine does not allow network namespaces: {obstacle}")
    return cluster_of(config.NAMESPACES)
