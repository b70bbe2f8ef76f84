"""Agents that sample their ranks in real runs."""

import os
import stat

from hpcdist.runs.events import read_events
from hpcdist.summary import summarize

SCRIPT = """
import os, resource, sys, time
from hpcdist.rank import context as rank
from hpcdist.runs.events import read_events

context = rank.current()
attempt = context.attempt
own = context.run.usage_file(context.node_rank, attempt)

def num_windows():
    found = read_events(own) if own.exists() else []
    return sum(event["event"] == "usage" for event in found)

def wait_for_windows(number):
    end = num_windows() + number
    deadline = time.monotonic() + 60
    while num_windows() < end:
        assert time.monotonic() < deadline
        time.sleep(0.02)

def spin(cpu_s):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass
"""

LOAD = (
    SCRIPT
    + """
if __name__ == "__main__":
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            spin(0.2)
            return index

    wait_for_windows(1)
    spin(1.0)
    for _ in DataLoader(Slow(), num_workers=2):
        pass
    wait_for_windows(2)
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(who) for who in both]
    print(sum(one.ru_utime + one.ru_stime for one in used))
"""
)


def usage(run, node=0, attempt=0):
    events = read_events(run.usage_file(node, attempt))
    return events[0], [event for event in events if event["event"] == "usage"]


def cpu_time_s(windows):
    """Of all windows; one that has a single sample, in which a rank is new, has none."""
    return sum(one["cpus_busy"] * one["wall_s"] for one in windows if one["cpus_busy"])


def test_a_run_shows_the_cpu_time_of_its_rank_and_workers(launch, write_script):
    launched = launch(write_script(LOAD), usage_s=0.1)
    assert launched.verdict(90).kind == "done", launched.log(0)
    begin, windows = usage(launched.run)
    used_s = cpu_time_s(windows)
    # Of all that the rank and its workers used, what was before the first sample is not in, but
    # what the rank's end took after it had printed is.
    assert 1.0 + 4 * 0.2 - 0.1 < used_s <= float(launched.log(0).split()[-1]) + 0.5
    assert begin["host"]
    assert begin["num_cpus"] == len(begin["cpus"]) > 0
    assert "gpus" not in begin
    assert stat.S_IMODE(launched.run.usage_file(0).stat().st_mode) == 0o600

    summary = summarize([launched.run], {})
    assert summary.skipped == []
    found = summary.runs[0].usage
    assert found.num_cpus == begin["num_cpus"]


TWO_NODES = (
    SCRIPT
    + """
if context.rank == 0:
    wait_for_windows(1)
    spin(1.0)
wait_for_windows(2)
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
)


def test_each_agent_on_a_machine_samples_its_own_ranks_only(launch, write_script):
    launched = launch(write_script(TWO_NODES), nodes=2, usage_s=0.1)
    assert launched.verdict(90).kind == "done", launched.log(0) + launched.log(1)
    used_s = []
    for node in range(2):
        begin, windows = usage(launched.run, node)
        assert begin["node"] == node
        used_s.append(cpu_time_s(windows))
    assert used_s[0] - used_s[1] > 0.5


def test_a_run_too_short_for_samples_tells_what_it_had(launch, write_script):
    launched = launch(write_script("pass"))
    assert launched.verdict().kind == "done"
    _, windows = usage(launched.run)
    assert windows == []
    assert summarize([launched.run], {}).runs[0].usage is None


def test_nothing_is_sampled_where_that_is_off(launch, write_script):
    launched = launch(write_script("import time; time.sleep(0.5)"), usage_s=0)
    assert launched.verdict().kind == "done"
    assert os.listdir(launched.run.events_folder) == ["rank-00000.jsonl"]


def test_sampling_that_fails_ends_with_a_note_and_the_run_goes_on(launch, write_script):
    script = f"{SCRIPT}\nwhile not context.run.agent_log_file(0).exists(): time.sleep(0.02)"
    launched = launch(write_script(script), agents=[])
    launched.run.usage_file(0).mkdir()  # in the place of the file
    launched.start_agent(0)
    assert launched.verdict(90).kind == "done"
    log = launched.run.agent_log_file(0).read_text()
    assert "what the ranks use is not sampled any more: IsADirectoryError" in log


def test_a_log_that_cannot_be_written_ends_no_run(launch, write_script):
    own_is_gone = """
while not os.listdir(context.run.events_folder): time.sleep(0.02)
own = context.run.event_file(context.rank)
own.unlink()
own.mkdir()  # so that the agent cannot close it, and has something to tell
"""
    launched = launch(write_script(SCRIPT + own_is_gone), agents=[])
    launched.run.agent_log_file(0).mkdir()
    launched.run.usage_file(0).mkdir()
    launched.start_agent(0)
    assert launched.verdict(90).kind == "done"
    assert os.listdir(launched.run.event_file(0)) == []
