"""What a queue can never give is refused before anything is submitted."""

from pathlib import Path

import pytest

from hpcdist.base.errors import JobError
from hpcdist.cluster.profile import ClusterProfile, LsfOptions
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.schedulers.lsf.site import (
    Host,
    Queue,
    ask_hosts,
    ask_queue,
    check_queue,
    max_array_size,
    parse_queues,
)

RECORDED = Path(__file__).parent / "recorded"
LONG = (RECORDED / "bqueues_long.txt").read_text()
NORMAL, GPU, NIGHT = parse_queues(LONG)
HOSTS = [Host(name="a", status="ok", slots=16), Host(name="b", status="unavail", slots=32)]


def job(nodes=1, gpus=1, **resources):
    return ScriptJob(
        name="j", script="x.py", resources=Resources(nodes=nodes, gpus=gpus, **resources)
    )


def queues(commands):
    """A bqueues with these queues: all, or the one that is named."""
    parts = LONG.split("-" * 79)
    folder = Path(commands.folder)
    for queue, part in zip((NORMAL, GPU, NIGHT), parts, strict=True):
        (folder / f"queue.{queue.name}").write_text(part)
    commands.add(
        "bqueues",
        f"""
if [[ $1 != -l ]]; then cat {RECORDED}/bqueues.txt
elif [[ -z $2 ]]; then cat {RECORDED}/bqueues_long.txt
elif [[ -e {folder}/queue.$2 ]]; then cat {folder}/queue.$2
else echo "$2: No such queue" >&2; exit 255; fi
""",
    )


def test_a_queue_is_asked_for_by_its_name_in_one_call(commands):
    queues(commands)
    assert ask_queue("gpuv100") == GPU
    assert commands.calls == ["bqueues -l gpuv100"]


def test_without_a_name_the_default_queue_counts(commands, monkeypatch):
    queues(commands)
    assert ask_queue(None) == NORMAL
    monkeypatch.setenv("LSB_DEFAULTQUEUE", "gpuv100")
    assert ask_queue(None) == GPU
    assert commands.calls == ["bqueues -l", "bqueues -l gpuv100"]


def test_a_default_queue_that_is_not_marked_is_told_by_bparams(commands):
    commands.say("bqueues", LONG.replace("This is the default queue.", ""))
    assert ask_queue(None) is None
    commands.say("bparams", "Default Queues:  gpuv100\nMBD_SLEEP_TIME used: 10 seconds\n")
    assert ask_queue(None) == GPU


def test_of_several_default_queues_lsf_chooses_itself(commands):
    marked = LONG.replace("-- GPU nodes", "-- GPU nodes  This is the default queue.")
    commands.say("bqueues", marked)
    assert ask_queue(None) is None


def test_an_unknown_queue_is_an_error_that_lists_the_known_ones_nearest_first(commands):
    queues(commands)
    with pytest.raises(JobError, match="partition is gpuv10, and LSF has no queue") as raised:
        ask_queue("gpuv10")
    assert raised.value.hint == "queues are: gpuv100, night, normal"


def test_an_unknown_queue_of_the_environment_is_named_so(commands, monkeypatch):
    queues(commands)
    monkeypatch.setenv("LSB_DEFAULTQUEUE", "old")
    with pytest.raises(JobError, match="LSB_DEFAULTQUEUE is old"):
        ask_queue(None)


@pytest.mark.parametrize("said", ["LSF is down. Please wait ...", "what?", ""])
def test_where_lsf_does_not_tell_it_is_left_to_bsub(commands, said):
    for name in ("bqueues", "bhosts", "bparams"):
        commands.say(name, err=said, code=255)
    assert ask_queue("gpuv100") is None
    assert ask_hosts() == []
    assert max_array_size() == 1000
    check_queue(job(gpus=1000), ClusterProfile(), None, [])


def test_without_the_commands_nothing_is_refused(commands):
    assert ask_queue("gpuv100") is None
    assert ask_hosts() == []
    assert max_array_size() == 1000


def test_the_site_tells_the_longest_array_and_its_hosts(commands):
    commands.say("bparams", (RECORDED / "bparams_all.txt").read_text())
    master = "master1            ok              -      0      0      0      0      0      0\n"
    commands.say("bhosts", (RECORDED / "bhosts.txt").read_text() + master)  # it runs nothing
    assert max_array_size() == 4000
    assert [host.name for host in ask_hosts()] == ["hostA", "hostB", "hostC"]


@pytest.mark.parametrize(
    ("asked", "profile", "queue", "message", "hint"),
    [
        (job(), {}, NIGHT, "queue night is closed", "--partition"),
        (
            job(time_limit_min=1500),
            {},
            GPU,
            "resources.time_limit_min is 1500, but queue gpuv100 allows 1440 minutes",
            "--time 1440",
        ),
        (job(), {"time_limit_min": 2000}, GPU, "is 2000, but queue gpuv100 allows 1440", "--time"),
        (
            job(nodes=5, gpus=2, cpus_per_gpu=8),
            {},
            GPU,
            "resources.nodes is 5 with 16 slots each, 80 in all, but queue gpuv100 allows a job 64",
            "--nodes",
        ),
        (
            job(gpus=1),
            {},
            Queue(name="wide", min_slots=8, max_slots=64),
            "1 in all, but queue wide is for jobs with 8 or more",
            "--nodes",
        ),
        (
            job(gpus=33),
            {},
            GPU,
            "resources.gpus is 33 per node, but LSF's hosts have 32 slots at most",
            "--gpus",
        ),
        (
            job(gpus=8, cpus_per_gpu=5),
            {},
            None,
            "resources.cpus_per_gpu is 5, with 8 ranks 40 slots per node, but LSF's hosts have 32",
            "cpus_per_gpu",
        ),
        (
            job(nodes=2, gpus=2, cpus_per_gpu=16),
            {},
            None,
            "resources.nodes is 2, but LSF has 1 host with the 32 slots that a node needs",
            "--nodes",
        ),
    ],
)
def test_what_the_queue_can_never_give_is_refused(asked, profile, queue, message, hint):
    with pytest.raises(JobError) as raised:
        check_queue(asked, ClusterProfile(**profile), queue, HOSTS)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("asked", "options", "hosts"),
    [
        (job(nodes=2, gpus=2, cpus_per_gpu=8, time_limit_min=1440), {}, HOSTS),
        (job(gpus=2, cpus_per_gpu=16), {}, HOSTS),
        (job(gpus=40), {}, [*HOSTS, Host(name="c", status="ok", slots=None)]),
    ],
    ids=["just fits", "fits the largest", "a host without a limit"],
)
def test_what_may_run_is_not_refused(asked, options, hosts):
    check_queue(asked, ClusterProfile(lsf=LsfOptions(**options)), GPU, hosts)


def test_a_limit_that_is_counted_by_a_hosts_speed_is_left_to_bsub():
    check_queue(job(time_limit_min=342801), ClusterProfile(), NORMAL)
