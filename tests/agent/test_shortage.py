"""Out of memory, in figures: what torch says, and what would help."""

import os
import re
from pathlib import Path

import msgspec
import pytest

from hpcdist.agent.outcome.failure import decide
from hpcdist.agent.outcome.shortage import (
    Shortage,
    judge_lost_worker,
    parse_shortage,
    shortage_sentence,
    tells_of_shortage,
)
from hpcdist.job.spec import TrainJob
from hpcdist.machine.memory import KernelKills
from hpcdist.runs.verdict import RankEnd
from hpcdist.training.memory import Holding, advise, advise_on_model, expected_holding

BEFORE = KernelKills(4, is_of_group=True)
GIB = 1 << 30
MIB = 1 << 20

ON_A_GPU = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.64 GiB memory in "
    "use. Of the allocated memory 76.25 GiB is allocated by PyTorch, and 512.00 MiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
SHARED = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 15.75 GiB of "
    "which 17.56 MiB is free. Process 4711 has 10.00 GiB memory in use. Process 4712 has 5.73 GiB "
    "memory in use. 6.00 GiB allowed; Of the allocated memory 5.00 GiB is allocated by PyTorch, "
    "and 425.99 MiB is reserved by PyTorch but unallocated."
)
ON_THE_HOST = (
    "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)"
)
OF_NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\nLast error:\n"
    "Failed to CUDA calloc 4096 bytes: Cuda failure 2 'out of memory'"
)
OF_NUMPY = "Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000) and data type"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            ON_A_GPU,
            Shortage(
                asked_bytes=2 * GIB,
                gpu=0,
                total_bytes=int(79.15 * GIB),
                free_bytes=int(1.5 * GIB),
                used_bytes=int(76.25 * GIB),
                reserved_bytes=512 * MIB,
            ),
        ),
        (
            SHARED,
            Shortage(
                asked_bytes=20 * MIB,
                gpu=3,
                total_bytes=int(15.75 * GIB),
                free_bytes=int(17.56 * MIB),
                allowed_bytes=6 * GIB,
                used_bytes=5 * GIB,
                reserved_bytes=int(425.99 * MIB),
            ),
        ),
        (ON_THE_HOST, Shortage(asked_bytes=400_000_000_000)),
        (OF_NUMPY, Shortage(asked_bytes=int(7.28 * (1 << 40)))),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
        ("out of memory", None),
    ],
    ids=["gpu", "shared gpu", "host", "numpy", "1EB", "no figures"],
)
def test_the_figures_of_a_message_are_read(message, expected):
    assert parse_shortage(message) == expected


def test_memory_that_is_held_in_pieces_is_told_where_it_would_have_been_enough():
    assert "held in pieces" in shortage_sentence(parse_shortage(SHARED))
    assert "held in pieces" not in shortage_sentence(parse_shortage(ON_A_GPU))


def test_the_verdict_says_what_was_asked_what_was_free_and_what_would_help():
    job = _job(model={"name": "resnet50"}, train={"batch_size": 256})
    holding = Holding(
        parameter_bytes=100_000_000, gradient_bytes=100_000_000, optimizer_bytes=200_000_000
    )
    used_bytes = parse_shortage(ON_A_GPU).used_bytes
    end = RankEnd(
        rank=1,
        local_rank=1,
        node=0,
        host="h",
        time_s=1.0,
        exit_code=1,
        exception="torch.OutOfMemoryError",
        message=ON_A_GPU,
        step=3,
        advice=advise(job, world_size=4, holding=holding, used_bytes=used_bytes),
    )
    verdict = decide([end])
    assert verdict.kind == "out_of_memory"
    assert verdict.message == (
        "rank 1 (node 0, host h) failed first after step 3: out of memory: 2.15 GB were asked for, "
        "1.61 GB of GPU 0's 84.99 GB were free, its tensors held 81.87 GB; model states are "
        "0.40 GB per rank (parameters 0.10 GB, gradients 0.10 GB, optimizer 0.20 GB), and what "
        "grows with the batch was 81.47 GB; what would help: train.batch_size=128 with "
        "train.accumulate=2 (in place of 256 and 1), which trains the same and saves about "
        "40.74 GB; train.precision=bf16-mixed and saves up to 40.74 GB; "
        "train.activation_checkpointing=true, for about a third more time; strategy=fsdp on 4 "
        "ranks, with model states of 0.10 GB per rank"
    )


def test_fsdp_comes_first_where_the_model_is_what_does_not_fit():
    job = _job(train={"batch_size": 2, "precision": "bf16-mixed"})
    holding = expected_holding(job, 4_000_000_000, world_size=8)
    assert holding.total_bytes == 4_000_000_000 * 16  # 4 bytes, 4 times with adam
    advice = advise(job, world_size=8, holding=holding, used_bytes=70_000_000_000)
    first = advice.partition("what would help: ")[2].partition(";")[0]
    assert first == "strategy=fsdp on 8 ranks, with model states of 8.00 GB per rank"
    assert "activation_checkpointing" not in advice  # fashion_cnn has no blocks
    assert "precision" not in advice


def test_what_a_job_has_already_is_not_advised():
    train = {"batch_size": 1, "precision": "bf16-true", "optimizer": "sgd"}
    job = _job(strategy="fsdp", model={"name": "mlp"}, train=train)
    holding = expected_holding(job, 800, world_size=4)
    assert (holding.parameter_bytes, holding.optimizer_bytes) == (400, 400)
    assert (
        advise(job, world_size=4, holding=holding).partition("help: ")[2].startswith("more ranks")
    )


def test_a_model_that_cannot_be_made_is_told_by_what_the_host_must_hold():
    job = _job(resources={"nodes": 2, "gpus": 4}, model={"name": "mlp"})
    advice = advise_on_model(job, num_parameters=10**9, world_size=8, is_built=False)
    assert advice == (
        "the model has 1,000,000,000 parameters: each rank makes it whole in its host's memory, "
        "4.00 GB, 16.00 GB on a node with 4 ranks; its states are 16.00 GB per rank, once a step "
        "is done (parameters 4.00 GB, gradients 4.00 GB, optimizer 8.00 GB); what would help: a "
        "smaller model (model.args); hosts with more memory per rank; fewer ranks on a node: "
        "4.00 GB with resources.gpus=1; not a smaller batch: there was none yet"
    )


def test_a_model_that_does_not_fit_on_its_device_is_told_what_fsdp_would_leave():
    job = _job(resources={"gpus": 4}, model={"name": "mlp"})
    advice = advise_on_model(job, num_parameters=10**9, world_size=4, is_built=True)
    assert "help: strategy=fsdp on 4 ranks, with model states of 4.00 GB per rank; train.prec" in (
        advice
    )
    assert "train.precision=bf16-true, with model states of 8.00 GB per rank" in advice
    cut_up = _job(strategy="fsdp", model={"name": "mlp"})
    advice = advise_on_model(cut_up, num_parameters=10**9, world_size=4, is_built=True)
    assert "states are 4.00 GB per rank" in advice
    assert "more ranks" in advice
    assert "strategy=fsdp" not in advice


def test_what_was_left_on_the_host_is_told_and_numpys_error_is_one():
    assert tells_of_shortage("numpy._core._exceptions._ArrayMemoryError", OF_NUMPY)
    assert tells_of_shortage("torch.AcceleratorError", "CUDA error: out of memory")
    assert tells_of_shortage("torch.distributed.DistBackendError", OF_NCCL)
    assert not tells_of_shortage("torch.AcceleratorError", "CUDA error: device-side assert")
    end = RankEnd(
        rank=0,
        local_rank=0,
        node=0,
        host="h",
        time_s=1.0,
        exit_code=1,
        exception="RuntimeError",
        message=ON_THE_HOST,
        free_bytes=3_000_000_000,
    )
    verdict = decide([end])
    assert verdict.message.endswith(
        "out of memory: 400.00 GB were asked for, 3.00 GB were left to the rank on its host"
    )


def test_a_model_for_which_there_is_no_memory_ends_with_figures(zygote, lack_memory):
    lack_memory(zygote, "ddp")


def _job(**sections):
    return msgspec.convert({"name": "test", **sections}, TrainJob)


HUNGRY_WORKER = """
import torch
class Hungry(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.ones(200_000_000).sum()
for _ in torch.utils.data.DataLoader(Hungry(), num_workers=1): pass
"""


@pytest.fixture
def small_memory():
    """A memory cgroup in which a rank has room, but none for 0.8 GB, as a job's."""
    folder = Path(f"/sys/fs/cgroup/memory/hpcdist-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("a limit on memory takes a superuser and a memory cgroup of version 1")
    (folder / "memory.limit_in_bytes").write_text(str(500 << 20))
    yield folder
    folder.rmdir()


def test_a_worker_that_the_kernel_kills_for_its_memory_is_told_with_its_rank(
    launch, write_script, small_memory
):
    into_group = f"open('{small_memory}/cgroup.procs', 'w').write('0')"
    verdict = launch(write_script(f"{into_group}\n{HUNGRY_WORKER}")).verdict()
    assert verdict.kind == "out_of_memory"
    assert re.search(
        r"^rank 0 \(node 0, host .*\) failed first: out of memory: its DataLoader worker "
        r"\(pid \d+\) was killed by the kernel, for lack of memory: its cgroup counts that; ask ",
        verdict.message,
    )


@pytest.mark.parametrize(
    ("signal_words", "now", "sentence", "out_of_memory"),
    [
        ("Killed", KernelKills(5, is_of_group=True), "killed by the kernel, for lack of", True),
        ("Killed", KernelKills(4, is_of_group=True), "the kernel counts no kill for lack", False),
        ("Killed", KernelKills(), "for lack of memory, which is not counted here", False),
        (
            "Bus error",
            BEFORE,
            "SIGBUS: the shared memory /dev/shm",
            False,
        ),
        ("Segmentation fault", BEFORE, "was killed by a signal: Segmentation fault", False),
    ],
)
def test_what_killed_a_worker_is_judged_by_what_the_kernel_counts(
    signal_words, now, sentence, out_of_memory
):
    worker = judge_lost_worker("7", signal_words, BEFORE, now)
    assert sentence in worker.sentence
    assert worker.out_of_memory == out_of_memory
