"""Simulated LSF sites for the session, and one of them whole and idle for each test."""

import pytest
from cluster_user import User
from lsf_site.config import SiteConfig
from lsf_site.site import Site, path_without_slurm

MOST_SITES = 4
"""Sites of a test process, beside those of the present test: most tests share three."""


@pytest.fixture(scope="session")
def sites():
    """All that are there, by their SiteConfig; the one that was used last comes last."""
    sites = {}
    yield sites
    for site in sites.values():
        site.stop()


@pytest.fixture
def site_of(tmp_path_factory, command_process, sites):
    """Call it with a SiteConfig; starts a site on the first call, and the same comes after. Those
    that nobody has used for longest end with the test."""
    programs = path_without_slurm(tmp_path_factory.getbasetemp() / "programs")

    def get(config):
        site = sites.pop(config, None) or _start(config, programs, command_process)
        sites[config] = site
        return site

    yield get
    for config in list(sites)[:-MOST_SITES]:
        sites.pop(config).stop()


def _start(config, programs, command_process):
    site = Site(config, programs=programs)
    site.command_server = command_process
    site.start()
    return site


@pytest.fixture
def lsf_like(site_of):
    """Call it with what a site is to have; it is idle, and a job that is left in it an error."""
    used = []

    def get(**settings):
        site = site_of(SiteConfig(**settings))
        site.restore()  # in case the last test ended before it could
        used.append(site)
        return site

    yield get
    left = [job for site in used for job in site.restore()]
    assert not left, "the test left jobs in the queue, and has to wait for their end or kill them"


@pytest.fixture
def lsf_here(lsf_like):
    """Hosts 127.0.1.1 to 127.0.1.4, names that resolve; kills and limits take a second or so."""
    return lsf_like(hosts=tuple(f"127.0.1.{number}" for number in range(1, 5)))


@pytest.fixture
def lsf(lsf_like):
    """An ordinary site of IBM's engine: hostA to hostD, with 4 slots and 2 GPUs each."""
    return lsf_like()


@pytest.fixture
def user(lsf_like, tmp_path):
    """Of a site that leaves so much time after a signal that a test fails if the next is needed."""
    return User(lsf_like(kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)


@pytest.fixture
def hasty_user(lsf_like, tmp_path):
    """Of a site on which what does not end at once is killed."""
    return User(lsf_like(kill_interval_s=0.4, limit_grace_s=0.4), tmp_path)
