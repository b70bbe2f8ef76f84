"""Simulated LSF sites for the session, and one of them whole and idle for each test."""

import pytest
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
