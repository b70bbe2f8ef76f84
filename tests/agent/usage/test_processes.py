"""CPU time of real processes, against what these say of themselves."""

import subprocess
import sys
import time

import pytest

from hpcdist.agent.sampler import CpuReader

OBEY = """
import os, sys, time
kept = []

def spin(cpu_s):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass

def spin_in_a_child(cpu_s):
    pid = os.fork()
    if pid == 0:
        spin(cpu_s)
        os._exit(0)
    os.waitpid(pid, 0)

def fork_idle():
    pid = os.fork()
    if pid == 0:
        time.sleep(100)
    kept.append(pid)

def end_child():
    pid = kept.pop()
    os.kill(pid, 9)
    os.waitpid(pid, 0)

print(flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


@pytest.fixture
def rank():
    """A process that does what it is told, and answers when it is done."""
    with subprocess.Popen(
        [sys.executable, "-c", OBEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()

        def tell(line):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            process.stdout.readline()

        yield process.pid, tell


class Sampled:
    """Samples of one rank, with the time between them."""

    def __init__(self, pid):
        self.pid = pid
        self.ranks = CpuReader(None)
        self.at_s = time.monotonic()
        self.ranks.sample([pid], 0.0)

    def cpu_s(self):
        """CPU seconds since the last sample."""
        before_s, self.at_s = self.at_s, time.monotonic()
        length_s = self.at_s - before_s
        return self.ranks.sample([self.pid], length_s)["cpus_busy"] * length_s


TICK_S = 0.011  # of the kernel's clock for CPU time
ROUGHLY_S = 0.25  # what telling, forking and reading /proc may take


def test_a_worker_counts_as_its_rank_also_when_it_began_and_ended_between_two_samples(rank):
    pid, tell = rank
    sampled = Sampled(pid)
    tell("spin_in_a_child(0.5)")
    assert 0.5 - 2 * TICK_S < sampled.cpu_s() < 0.5 + ROUGHLY_S


def test_a_living_worker_that_is_waited_for_later_is_counted_once(rank):
    pid, tell = rank
    sampled = Sampled(pid)
    tell("fork_idle()")
    sampled.cpu_s()
    tell("end_child()")
    assert sampled.cpu_s() < ROUGHLY_S


def test_a_rank_that_ended_or_has_just_come_has_no_cpu_figure(rank):
    pid, _ = rank
    reader = CpuReader(None)
    for ranks in ([pid], [], [pid], [2**22 + 1]):
        assert "cpus_busy" not in reader.sample(ranks, 1.0)


def test_the_node_is_at_least_as_busy_as_a_rank_on_it(rank):
    _, tell = rank
    node, begin_s = CpuReader(None), time.monotonic()
    tell("spin(1.0)")
    length_s = time.monotonic() - begin_s
    found = node.sample([], length_s)
    assert found["bound_cpus_busy"] * length_s > 1.0 - ROUGHLY_S
