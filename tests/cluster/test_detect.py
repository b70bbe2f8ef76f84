"""From the texts of the schedulers' commands to a first hpcdist.yaml."""

import pytest

from hpcdist.cluster.load import all_profiles, load_profile
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, first_file
from hpcdist.schedulers.lsf import jobs as lsf_jobs
from hpcdist.schedulers.slurm import slurm as slurm_module

SINFO = """\
debug*|2|64|256000|(null)|30:00|up
gpu|10|64|512000|gpu:a100:4(S:0-1)|2-00:00:00|up
gpu|2|48|384000|gpu:a100:4|2-00:00:00|up
mixed|1|64|512000|gpu:a100:4|infinite|up
mixed|1|32|512000|gpu:v100:2|infinite|up
mixed|5|128|512000|(null)|infinite|up
drained|4|64|512000|gpu:h100:4|1:00:00|down
empty|0|0|0|(null)|infinite|up
"""


def site(*partitions, **options):
    return Site(
        **{"scheduler": "slurm", "gpu_request": "gpus-per-node", "partitions": partitions} | options
    )


def gpu_partition(name="gpu", **options):
    return Partition(**{"name": name, "num_nodes": 2, "cpus": 64, "gpus": 4} | options)


def read_back(profiles, text):
    profiles.project(text)
    default, names = all_profiles()
    return default, {name: load_profile(name).profile for name in names}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),nvme:1", {"a100": 4, "v100": 2}),
        ("nvme:gpu:3x", {}),
    ],
)
def test_gpus_are_counted_by_type(gres, gpus):
    assert slurm_module.parse_gpus(gres) == gpus


def test_the_first_file_has_every_partition_with_gpus_and_the_sites_default(profiles):
    partitions = slurm_module.parse_sinfo(SINFO)
    default, found = read_back(profiles, first_file(site(*partitions, accounts=("proj",))))
    assert default == "gpu"
    common = {"scheduler": "slurm", "account": "proj"}
    assert found == {
        "gpu": ClusterProfile(
            partition="gpu", gpu_type="a100", cpus_per_gpu=12, time_limit_min=2880, **common
        ),
        "mixed": ClusterProfile(partition="mixed", cpus_per_gpu=16, **common),
        "debug": ClusterProfile(partition="debug", gpu_request="none", time_limit_min=30, **common),
    }


def test_the_default_is_the_sites_where_it_has_gpus_and_names_are_text_to_yaml(profiles):
    partitions = gpu_partition("007", num_nodes=90), gpu_partition("true", is_default=True)
    default, found = read_back(profiles, first_file(site(*partitions)))
    assert default == "true"
    assert {profile.partition for profile in found.values()} == {"007", "true"}


def test_several_accounts_and_types_are_for_the_user_to_choose(profiles):
    text = first_file(site(gpu_partition(gpu_types=("a100", "v100")), accounts=("ann", "proj")))
    assert '# account: "ann"  # yours: ann, proj' in text
    assert '# gpu_type: "a100"  # it has a100, v100; unset: any' in text
    _, found = read_back(profiles, text)
    assert found["gpu"].account is found["gpu"].gpu_type is None


BHOSTS = """\
HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV
hosta              ok              -     16      0      0      0      0      0
hostb              closed_Full     -     32     32     32      0      0      0
hostc              unavail         -      8      0      0      0      0      0
hostd              ok              -      -      0      0      0      0      0
"""
BHOSTS_GPU = """\
HOST_NAME              ID           MODEL     MUSED      MRSV  NJOBS    RUN   SUSP    RSV
hosta                   0   TeslaV100_SXM2      10M        0M      0      0      0      0
                        1   TeslaV100_SXM2      10M        0M      0      0      0      0
hostb                   0   TeslaV100_SXM2      10M        0M      0      0      0      0
                        1   TeslaV100_SXM2      10M        0M      0      0      0      0
                        2   TeslaV100_SXM2      10M        0M      0      0      0      0
"""
STATUS = "QUEUE: {}\nPRIO NICE STATUS  MAX\n 30  0  {}  -\n"
BQUEUES_LONG = (
    STATUS.format("normal", "Open:Active")
    + "DEFAULT LIMITS:\n RUNLIMIT\n 60.0 min\nMAXIMUM LIMITS:\n RUNLIMIT\n 1440.0 min\n"
    + STATUS.format("night", "Open:Inact")
    + STATUS.format("admin", "Closed:Active")
    + STATUS.format("gpu", "Open:Active")
)


def test_an_lsf_site_gets_one_profile_and_the_names_of_the_other_queues(profiles, monkeypatch):
    said = {
        "bqueues -l": BQUEUES_LONG,
        "bparams": "Default Queues:  normal gpu\nX: y\n",
        "bhosts -w": BHOSTS,
        "bhosts -gpu -w": BHOSTS_GPU,
    }
    for name in ("ask", "try_to_ask"):
        monkeypatch.setattr(lsf_jobs, name, lambda *words: said[" ".join(words)])
    text = first_file(lsf_jobs.detect_lsf())
    assert "# other queues: gpu\n" in text
    _, read = read_back(profiles, text)
    assert read == {
        "normal": ClusterProfile(
            scheduler="lsf", partition="normal", cpus_per_gpu=8, time_limit_min=1440
        )
    }
