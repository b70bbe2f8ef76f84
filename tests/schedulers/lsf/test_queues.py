"""What a queue can never give is refused before anything is submitted."""

from pathlib import Path

import pytest

from hpcdist.base.errors import JobError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.schedulers.lsf.site import ask_hosts, check_queue, max_array_size

RECORDED = Path(__file__).parent / "recorded"
LONG = (RECORDED / "bqueues_long.txt").read_text()


def job(nodes=1, gpus=1, **resources):
    return ScriptJob(
        name="j", script="x.py", resources=Resources(nodes=nodes, gpus=gpus, **resources)
    )


@pytest.fixture
def queues(commands):
    """A bqueues with these queues: all, or the one that is named."""
    for name, part in zip(("normal", "gpuv100", "night"), LONG.split("-" * 79), strict=True):
        (commands.folder / f"queue.{name}").write_text(part)
    commands.add(
        "bqueues",
        f"""
if [[ -z $2 ]]; then cat {RECORDED}/bqueues_long.txt
elif [[ -e {commands.folder}/queue.$2 ]]; then cat {commands.folder}/queue.$2
else echo "$2: No such queue" >&2; exit 255; fi
""",
    )
    return commands


@pytest.mark.parametrize(
    ("asked", "profile", "message", "hint"),
    [
        (job(), {"partition": "night"}, "queue night is closed", "--partition"),
        (
            *(job(), {"partition": "gpuv10"}, "partition is gpuv10, and LSF has no queue"),
            "queues are: gpuv100, night, normal",
        ),
        (
            *(job(time_limit_min=1500), {}, "is 1500, but queue gpuv100 allows 1440 minutes"),
            "--time 1440",
        ),
        (job(), {"time_limit_min": 2000}, "is 2000, but queue gpuv100 allows 1440", "--time"),
        (
            job(nodes=5, gpus=2, cpus_per_gpu=8),
            {},
            "resources.nodes is 5 with 16 slots each, 80 in all, but queue gpuv100 allows a job 64",
            "--nodes",
        ),
    ],
)
@pytest.mark.usefixtures("queues")
def test_what_the_queue_can_never_give_is_refused(asked, profile, message, hint):
    with pytest.raises(JobError) as raised:
        check_queue(asked, ClusterProfile(**{"partition": "gpuv100"} | profile))
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_what_may_run_is_not_refused(queues):
    fits = job(nodes=2, gpus=2, cpus_per_gpu=8, time_limit_min=1440)
    check_queue(fits, ClusterProfile(partition="gpuv100"))
    assert queues.calls == ["bqueues -l gpuv100"]
    # A limit that is counted by a host's speed is bsub's to judge.
    check_queue(job(time_limit_min=342801), ClusterProfile(partition="normal"))


@pytest.mark.parametrize("said", ["LSF is down. Please wait ...", "what?", "", None])
def test_where_lsf_does_not_tell_it_is_left_to_bsub(commands, said):
    for name in ("bqueues", "bhosts", "bparams"):
        if said is not None:
            commands.say(name, err=said, code=255)
    check_queue(job(gpus=1000), ClusterProfile(partition="gpuv100"))
    assert ask_hosts() == {}
    assert max_array_size() == 1000


def test_the_site_tells_the_longest_array(commands):
    commands.say("bparams", (RECORDED / "bparams_all.txt").read_text())
    assert max_array_size() == 4000
