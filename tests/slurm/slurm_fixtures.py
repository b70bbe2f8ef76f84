"""Slurm clusters for the session, and one of them whole and idle for each test."""

import pytest
from made_once import session_folder
from slurm_cluster import config, namespaces
from slurm_cluster.cluster import Cluster


@pytest.fixture(scope="session")
def databases(tmp_path_factory):
    """Where all clusters of the session, in whatever process, have their database from."""
    return str(session_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def cluster_of(missing, databases, command_process):
    """Call it with a network; boots a cluster on the first call, and the same comes after."""
    clusters = {}

    def get(network):
        if lacking := config.missing_programs():
            missing(lacking)
        if network not in clusters:
            clusters[network] = Cluster(network, command_process, databases=databases)
            clusters[network].start()
        return clusters[network]

    yield get
    for cluster in clusters.values():
        cluster.stop()


def _whole_and_idle(cluster):
    """The cluster, for one test; a job that the test leaves is an error."""
    if not cluster.is_whole:  # the last test ended before it could
        cluster.restore()
    cluster.is_whole = False
    yield cluster
    left = cluster.restore()
    assert not left, "the test left jobs in the queue, and has to wait for their end or cancel them"


@pytest.fixture
def slurm(cluster_of):
    """Four nodes with 4 CPUs and 2 GPUs each, called 127.0.1.1 to 127.0.1.4."""
    yield from _whole_and_idle(cluster_of(config.LOOPBACK))


@pytest.fixture(scope="session")
def _no_namespaces():
    return namespaces.why_not_here()


@pytest.fixture
def slurm_netns(cluster_of, missing, _no_namespaces):
    """Nodes n1 to n4, each with its own network, hostname and /etc/hosts; links can be cut."""
    if _no_namespaces:
        missing(f"this machine does not allow network namespaces: {_no_namespaces}")
    yield from _whole_and_idle(cluster_of(config.NAMESPACES))
