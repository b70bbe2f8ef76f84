"""Runs whose agents are forked from a process that has torch already: real, but for its import."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from hpcdist.rank import exit as rank_exit
from hpcdist.runs.run import Run
from hpcdist.submission.plan import plan_run
from hpcdist.submission.submit import write_spec

_ZYGOTE = Path(__file__).parents[1] / "agent" / "zygote.py"


@contextlib.contextmanager
def zygote(lasting_process, *modules, environment=None):
    """The process, with these modules and variables, too; `lasting_process` is the fixture."""
    process = subprocess.Popen(
        [sys.executable, str(_ZYGOTE), *modules],
        env=os.environ | (environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    lasting_process(process.pid)
    process.stdout.readline()
    yield process
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


def start_run(forking, loaded, runs, *, agents=None, scheduler="local", change=""):
    """Start a run's agents on simulated nodes, or those of some; the run, and what starts the agent
    of a node. `change` ("module:function") is called in each agent, and so holds for its ranks."""
    run = Run.create(runs, loaded.job.name)
    write_spec(run, plan_run(loaded, scheduler="local"))
    run.write_spec(msgspec.structs.replace(run.read_spec(), scheduler=scheduler))

    def start_agent(node):
        forking.stdin.write(os.fsencode(f"{run.path}\t{node}\t{change}\0"))
        forking.stdin.flush()

    for node in range(loaded.job.resources.nodes) if agents is None else agents:
        start_agent(node)
    return run, start_agent


def start_script(forking, folder, script, *arguments, environment):
    """Start a script by itself in this folder, which must be there: no agent, no rank. At its end
    there are the files `exit_code` and `output`. None takes a variable away."""
    argv = [str(word) for word in (script, *arguments)]
    order = json.dumps([argv, environment])
    forking.stdin.write(os.fsencode(f"{folder}\tscript\t{order}\0"))
    forking.stdin.flush()


def wait_briefly_at_the_end():
    """A change: ranks that hang while they end are ended soon."""
    rank_exit.TEARDOWN_LIMIT_S = 0.3
