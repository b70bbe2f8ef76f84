"""The states of a run and the kinds of verdicts in words, what helps against each kind, and the
words that hpcdist uses for itself.

The page docs/exit-codes.md and `hpcdist explain` have their texts from here.
"""

from __future__ import annotations

import signal

import msgspec

from hpcdist.base.errors import EXIT_CODES
from hpcdist.runs.verdict import Kind, State

STATES: dict[State, str] = {
    "pending": "submitted; no agent has started yet",
    "running": "an agent is running",
    "done": "every rank ended successfully",
    "failed": "a rank, an agent or the launch failed: see the verdict",
    "cancelled": "the user ended it",
    "preempted": "stopped before its end, because of the time limit or for other jobs; it can "
    "continue",
    "unknown": "its scheduler does not answer, or does not list its job, which it must say twice, "
    "20 s apart; the run may still be running",
    "lost": "it has no verdict and no process is left: the machine went down, or all processes "
    "were killed",
}


TERMS = {
    "job": "What can be submitted: a job of hpcdist, a job file, a script, a module or a function.",
    "run": "One submission of a job: a directory in runs/ that holds all that is known of it.",
    "sweep": "Several runs from one command: `--sweep train.lr=0.1,0.01`, `--repeat 3`.",
    "profile": "How one cluster wants to be asked for nodes and GPUs: an entry of hpcdist.yaml.",
    "node": "One machine of a run. With --local all nodes are simulated on this machine.",
    "rank": "One process of a training, and its number, from 0 to world_size - 1. It has a GPU of "
    "its own, or a share of the CPUs.",
    "local_rank": "The number of a rank on its node, from 0 on, and of the GPU that it uses.",
    "node_rank": "The number of a node, from 0 on.",
    "world_size": "The number of ranks: nodes x GPUs.",
    "agent": "The process of hpcdist on a node: it starts, watches and ends the ranks there.",
    "attempt": "One start of all ranks. A restart after a failure makes the next.",
    "life": "One start of the job by its scheduler. A requeue makes the next.",
    "event": "One line that a rank recorded, in the folder events of its run.",
    "verdict": "Why a run ended: which rank failed first, and of what.",
}
"""The words that hpcdist uses for itself."""


class KindMeaning(msgspec.Struct, frozen=True):
    """A kind of verdict in words."""

    meaning: str
    advice: list[str]
    """What helps, the most usual first; RUN stands for the run."""


_KINDS = """
done: every rank ended successfully
- See how fast it was, and where the time went: `hpcdist summary RUN`.

exception: a Python exception ended the rank that failed first
- Read its traceback, and what the rank printed before: `hpcdist logs RUN`. The other ranks' errors
  (connection closed, NCCL) are its consequence.
- Run one rank under pdb: `hpcdist submit JOB --debug`; or a small one here: `--local --set
  train.max_steps=10`.
- If it happens on one host only, its files or packages differ: `hpcdist doctor`.

exit: the rank exited with its own exit code (`sys.exit(3)`, `os._exit(7)`; also 0 before its work
was done)
- Look in the program for the place that exits: wrong arguments, such as those that argparse refuses
  (2), or a library that ends the process: `hpcdist logs RUN`.
- A program that wants to stop and go on later exits with 75 on every rank, after it has been asked
  to.

signal: a signal killed the rank
- SIGSEGV, SIGABRT, SIGBUS: compiled code crashed. Compare the versions of torch, CUDA and NCCL that
  the nodes see; the end of the log names the library, if it said so. SIGBUS is often a full
  /dev/shm: fewer `data.workers`.
- SIGKILL: somebody killed it; most often for its memory: more `resources.mem_gb`.
- SIGTERM: the scheduler or an administrator; `hpcdist status RUN` has its reason.

out_of_memory: out of memory: MemoryError, CUDA out of memory, the kernel's OOM killer, or
`resources.mem_gb` exceeded
- On a GPU: half of `train.batch_size` with twice `train.accumulate`, `train.precision=bf16-mixed`,
  `train.activation_checkpointing=true`, or fsdp, which shards what ddp copies.
- On the host: more `resources.mem_gb`, fewer `data.workers` (each may copy the data set), smaller
  `data.prefetch_factor`.
- See what was used until then: `hpcdist summary RUN --details`.

hang: no rank worked for `launch.hang_timeout_s`; the stacks of all ranks are in `logs/*.stacks`
- Look at the rank that the verdict names, and at the line: a collective operation inside `if rank
  == 0:`, unequal numbers of batches (`drop_last=True`), an exception that one rank caught.
  docs/hangs.md says how to read the sentence.
- If all ranks wait in the same operation, it is the network: `hpcdist doctor`, `hpcdist submit
  allreduce`; a wrong interface is corrected by the profile's `interface`.
- If a long evaluation or download is meant to take its time: a larger `launch.hang_timeout_s`.

agent_lost: the agent of a node died, cannot be reached, or has done nothing for
`launch.agent_timeout_s`
- Most often the node went down: go on elsewhere with `hpcdist resume RUN`; where the scheduler can,
  a requeue has done so already.
- If it is the same host again, leave it out (a directive such as --exclude=HOST in the profile) and
  tell the site.
- If its memory was exhausted, the kernel may have killed the agent: more `resources.mem_gb`.

launch: the ranks could not be started
- `hpcdist doctor` tries each part of a start, and says what to do.
- Read what the job said before the ranks: `hpcdist logs RUN`. Most often a line of the profile's
  `setup` failed, the nodes lack the Python that submitted (`python` in the profile), or the folder
  of the runs is not on a file system that they see.

cancelled: the user ended it
- Take it up again from its newest checkpoint: `hpcdist resume RUN`.

time_limit: with the state preempted: the ranks were warned and stopped before
`resources.time_limit_min`; with the state failed (exit code 1): they did not stop, and the limit
was reached
- Go on: `hpcdist resume RUN`, with a longer limit if the partition allows it (`--time`).
- Lose less: `checkpoint.every_steps`, and a `launch.warning_s` in which a checkpoint can be saved.
- A script asks `record.should_stop()` in each step, saves and exits with 75; then the scheduler
  starts the job again by itself (`launch.requeue`).

preempted: the ranks stopped, or were ended by SIGTERM, because the scheduler needs the nodes for
other jobs, or because somebody requeued the job
- With `launch.requeue` it goes on by itself when there are nodes again; else `hpcdist resume RUN`.
- Save checkpoints more often (`checkpoint.every_steps`), or choose a partition or qos whose jobs
  are not preempted.

no_progress: three starts of the job in a row ended without a newer checkpoint, so it is not started
again (for a script: without a newly recorded step or a stop with 75; ten starts if it has never
shown either)
- Save a checkpoint sooner than the job is stopped: `checkpoint.every_steps`; or ask for a longer
  `--time`.
- A script shows that it moves on by `record.step()`.
- Then go on: `hpcdist resume RUN`.
"""


def _parse(block: str) -> tuple[Kind, KindMeaning]:
    name, _, texts = block.partition(": ")
    meaning, *advice = (" ".join(text.split()) for text in texts.split("\n- "))
    return msgspec.convert(name, Kind), KindMeaning(meaning, advice)


KINDS = dict(map(_parse, _KINDS.strip().split("\n\n")))


def exit_code_in_words(code: int) -> str | None:
    """Return what an exit code of hpcdist or of a program means; None for a code that a program
    has chosen for itself."""
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    try:
        return f"the shell's code for a program that {signal.Signals(code - 128).name} ended"
    except ValueError:
        return None
