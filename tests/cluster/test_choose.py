"""Which scheduler a submission goes to, from flags and the profile."""

import pytest

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.load import NO_PROFILE, choose_cluster
from hpcdist.job import Flag


def test_a_profile_for_another_scheduler_is_refused(profiles):
    profiles.project("clusters: {jura: {scheduler: slurm}}\n")
    with pytest.raises(ProfileError, match=r"hpcdist.yaml: cluster jura is for slurm, not lsf"):
        choose_cluster("lsf", None, {})


def test_this_machine_by_name_goes_by_no_profile_not_even_a_broken_one(profiles):
    profiles.project("clusters: {jura: {qso: x}}\n")
    assert choose_cluster("local", None, {}) == ("local", NO_PROFILE)


def test_a_profile_can_be_for_this_machine(profiles):
    profiles.project("clusters: {here: {scheduler: local, environment: {A: b}}}\n")
    scheduler, loaded = choose_cluster(None, None, {})
    assert scheduler == "local"
    assert loaded.profile.environment == {"A": "b"}


def test_an_option_about_a_cluster_contradicts_a_run_on_this_machine(profiles):
    with pytest.raises(ProfileError, match="--qos high is for a cluster"):
        choose_cluster("local", None, {"qos": Flag(name="--qos", value="high")})
