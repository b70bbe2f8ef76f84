"""A warning of the scheduler reaches every rank's loop, whose ranks stop at the same step."""

import os
import signal

import msgspec
import pytest

LOOP = """
import os, sys, time
import torch, torch.distributed as dist
from hpcdist import record

dist.init_process_group("gloo")
total = torch.ones(1)
for step in range(int(sys.argv[1])):
    dist.all_reduce(total)
    record.step(samples=1)
    if step == 3:
        print("up", flush=True)
    if record.should_stop():
        print(f"saved {step + 1}", flush=True)
        sys.exit(record.EXIT_STOPPED)
    time.sleep(0.002 * (1 + dist.get_rank()))
"""
ENDLESS = 1_000_000


def warn(launched, *nodes):
    for node in nodes:
        os.kill(launched.agent_pid(node), signal.SIGUSR2)


def test_all_ranks_stop_at_the_same_step(launch, write_script, up):
    launched = up(launch(write_script(LOOP), ENDLESS, nodes=2, gpus=2), 4)
    for rank in range(4):  # which ends no script that asks whether to stop
        os.kill(launched.pid(rank), signal.SIGTERM)
    warn(launched, 0, 1, 0, 1)
    verdict = launched.verdict()
    how = (verdict.kind, verdict.state, verdict.exit_code_of_run)
    assert how == ("time_limit", "preempted", 75)
    assert verdict.message == f"stopped at step {verdict.step} before the time limit"
    assert {log.splitlines()[-1] for log in launched.logs()} == {f"saved {verdict.step}"}
    for rank in range(4):
        last = launched.events(rank)[-1]
        assert (last["status"], last["exit_code"]) == ("stopped", 75)


KNOWS_SIGTERM = """
import os, signal, sys, time
from hpcdist import record

def told(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, told)
if "both" in sys.argv:
    signal.signal(signal.SIGUSR2, told)
if "asks" in sys.argv:
    record.should_stop()
print("up", flush=True)
while True:
    if "asks" in sys.argv and record.should_stop():
        sys.exit("leaves with 0" not in sys.argv and record.EXIT_STOPPED)
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [(["knows one"], "SIGTERM\n"), (["both"], "SIGUSR2\n"), (["asks", "leaves with 0"], "")],
    ids=str,
)
def test_a_script_that_knows_sigterm_alone_gets_that_as_from_torchrun(
    launch, write_script, up, how, told
):
    launched = launch(write_script(KNOWS_SIGTERM), *how, gpus=2, agents=[])
    spec = launched.run.read_spec()
    plan = msgspec.structs.replace(spec.plan, warning_signals=["SIGUSR2", "SIGTERM"])
    launched.run.write_spec(msgspec.structs.replace(spec, plan=plan))
    launched.start_agent(0)
    up(launched, 2)
    os.kill(launched.agent_pid(0), signal.SIGTERM)
    verdict = launched.verdict()
    state = ("done", 0) if "leaves with 0" in how else ("preempted", 75)
    assert (verdict.state, verdict.exit_code_of_run) == state, verdict.message
    assert launched.logs() == [f"up\n{told}"] * 2


def test_the_time_limit_warns_before_it_ends_the_run(launch, write_script):
    deaf = LOOP.replace("sys.exit(record.EXIT_STOPPED)", "time.sleep(600)")
    launched = launch(write_script(deaf), ENDLESS, gpus=2, time_limit_min=3 / 60)
    verdict = launched.verdict()
    found = (verdict.kind, verdict.state, verdict.exit_code_of_run)
    assert found == ("time_limit", "failed", 1)
    assert verdict.message.endswith("the ranks had been asked to stop, and did not")
    assert {log.splitlines()[-1].split()[0] for log in launched.logs()} == {"saved"}
