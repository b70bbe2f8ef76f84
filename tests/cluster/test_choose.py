"""Which scheduler a submission goes to, from flags and the profile."""

import pytest

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.load import NO_PROFILE, choose_cluster
from hpcdist.job.load import Flag


@pytest.fixture(params=["auto", "slurm"])
def written(request, profiles):
    profiles.project(f"clusters: {{jura: {{scheduler: {request.param}, partition: gpu}}}}\n")
    return request.param


@pytest.mark.parametrize("asked", [None, "auto"])
def test_the_profile_says_the_scheduler_where_the_user_does_not(written, asked):
    scheduler, loaded = choose_cluster(asked, None, {})
    assert scheduler == written
    assert loaded.profile.partition == "gpu"


def test_the_user_says_the_scheduler_where_the_profile_agrees(written):
    scheduler, loaded = choose_cluster("slurm", "jura", {})
    assert scheduler == "slurm"
    assert loaded.name == "jura"


def test_a_profile_for_another_scheduler_is_refused(profiles):
    profiles.project("clusters: {jura: {scheduler: slurm}}\n")
    with pytest.raises(ProfileError, match=r"hpcdist.yaml: cluster jura is for slurm, not lsf"):
        choose_cluster("lsf", None, {})


def test_this_machine_by_name_goes_by_no_profile_not_even_a_broken_one(profiles):
    profiles.project("clusters: {jura: {qso: x}}\n")
    assert choose_cluster("local", None, {}) == ("local", NO_PROFILE)


def test_an_option_about_a_cluster_contradicts_a_run_on_this_machine(profiles):
    with pytest.raises(ProfileError, match="--qos high is for a cluster"):
        choose_cluster("local", None, {"qos": Flag(name="--qos", value="high")})
