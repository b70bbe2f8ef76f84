"""Tell the user of the end of a run or a sweep, and that a run seems to hang, each once, by the
channels that `notify` names.

The agent of a run's first node tells at the run's end. Where it cannot, as on nodes without a way
to the internet, or could not, as it died with its node, the next hpcdist command on the login node
does so, in the background. `hpcdist.runs.untold` sees to it that one of several does.

    python -c "from hpcdist.notify import main; main()" RUNS [NAME]
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunDirectoryError, UserError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import one_line
from hpcdist.cluster.channels import COMMAND, Channel, own_channels
from hpcdist.monitor.ends import exit_code_of_all
from hpcdist.monitor.follow import end_sentence
from hpcdist.monitor.states import OPEN_STATES, end_verdict, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.sweep import Sweep, is_sweep
from hpcdist.runs.untold import Taken, Untold, list_untold, may_look, peek, take
from hpcdist.runs.verdict import Hang, Verdict

LIMIT_S = 20.0
"""Time that all channels together may take: a service that does not answer must hold no job."""
_STARTING_S = 10.0
"""Time for the process that tells to start, and to read the figures."""
_WAIT_S = 5.0
"""Time that an agent waits for another that is at the same sweep."""
_LOOK_EVERY_S = 60.0
_SURE_AFTER_S = 2.0
_MOST_TRIES = 8
_MOST_HANGS = 10
"""Runs of a sweep of which is told that they seem to hang."""
_RETRY_S = 60.0
_MOST_ASKED = 3
"""Runs of a sweep that an agent asks the scheduler for at the end of its own: while more go on, it
leaves that to those that end later."""
_LONGEST_SWEEP_S = 30 * 86_400.0
"""A sweep on this machine starts no more runs after this time: its command was killed."""
_LONGEST_RETRY_S = 3600.0
_MOST_REASON = 200
_MOST_SAID_BYTES = 4_096
_MAIN = "import sys; sys.path[:] = filter(None, sys.path); from hpcdist.notify import main; main()"
"""Not -m, by which modules in the working directory would be found before others."""

LOG_NAME = "notify.log"
_SERVICES = {
    "slack": ("NotifySlack",),
    "teams": ("NotifyMSTeams", "NotifyWorkflows"),
    "discord": ("NotifyDiscord",),
    "ntfy": ("NotifyNtfy",),
}
"""Kind of channel -> apprise's classes for the addresses of that service."""


class Message(NamedTuple):
    """One message about an end."""

    title: str
    text: str
    fields: dict[str, str]
    """Variables for a command."""


# Who tells.


class Teller:
    """A process that tells of a run, or of the sweep that it is of, from the node that leads it;
    what is said of that goes into the job's log."""

    def __init__(self, run: Run) -> None:
        place = run.read_sweep_place()
        name = run.id if place is None else str(place.id)
        command = [sys.executable, "-c", _MAIN, str(run.path.parent), name]
        self._until_s = time.monotonic() + _STARTING_S + LIMIT_S
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    def wait(self) -> None:
        """Wait until it has told, or its time is over."""
        try:
            self._process.wait(max(0.0, self._until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def tell_end(run: Run) -> None:
    """Tell that a run has ended, or the sweep whose last run it was."""
    if run.verdict_file.exists():
        Teller(run).wait()


def tell_ends(runs: Path) -> None:
    """Have another process tell of runs in the folder that have ended, if there may be any."""
    now_s = time.time()
    due = [name for name in list_untold(runs) if peek(runs, name).not_before_s <= now_s]
    has_ended = any((runs / name / "verdict.json").exists() for name in due)
    if due and (has_ended or may_look(runs, every_s=_LOOK_EVERY_S)):
        with suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(runs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def main() -> None:
    """Tell of a run or sweep by its name, as the agent asks for, or of all that have ended."""
    tell(Path(sys.argv[1]), sys.argv[2:])
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for a service


def tell(runs: Path, names: Sequence[str] = ()) -> None:
    """Tell of these runs and sweeps, or of all in the folder whose time it is, if they have ended
    or seem to hang."""
    for name in names or list_untold(runs):
        # Runs of a sweep end together: who is at it may have seen this one still running.
        with take(runs, name, wait_s=_WAIT_S if names else 0.0) as taken:
            if taken is None or taken.untold.is_done:
                continue
            if names or taken.untold.not_before_s <= time.time():
                try:
                    _tell(runs / name, taken, is_first=bool(names))
                except Exception as error:  # noqa: BLE001 - of a damaged run; others are told of
                    _count_try(taken.untold, is_first=bool(names))
                    reason = one_line(f"{name}: {type(error).__name__}: {error}")
                    _log(runs / name, [f"not told: {reason}"], is_last=taken.untold.is_done)


# Whether there is something to tell.


def _tell(path: Path, taken: Taken, *, is_first: bool) -> None:
    """Tell of a run or sweep by the channels that do not know yet, if it has ended or hangs."""
    untold = taken.untold
    if not path.is_dir():  # deleted
        untold.is_done = True
        return
    there, are_all = _runs_of(path, is_over=untold.is_over)
    spec = (there[0].read_spec() if there else None) or RunSpec()
    channels = list(dict.fromkeys(own_channels(spec.cluster.profile.notify)))
    hangs = _hangs_of(there)
    _tell_hangs(taken, hangs, channels, spec.outline.name or "job")
    if (hangs and is_first) or not are_all:
        return  # an agent says that it hangs: it has not ended
    verdicts = _verdicts_of(there, most_asked=_MOST_ASKED if is_first else None)
    if verdicts is None:
        return
    if not there and is_sweep(path) and Sweep(path).read().jobs:  # all were deleted
        untold.is_done = True
        return
    message = _write_message(path, there, verdicts, spec)
    left = {str(channel): channel for channel in channels if str(channel) not in untold.told}
    lines, has_failed = _deliver(message, left, untold.told, taken)
    _count_try(untold, is_first=is_first)
    untold.is_done = untold.is_done or not has_failed
    _log(path, lines, is_last=has_failed and untold.is_done)


def _count_try(untold: Untold, *, is_first: bool) -> None:
    """Note that it was tried, and when it is to be tried again, if at all."""
    untold.num_tries += 1
    untold.is_done = untold.num_tries >= _MOST_TRIES
    if not is_first:  # commands of other hosts come at once where the node has no way out
        wait_s = min(_LONGEST_RETRY_S, _RETRY_S * 2.0**untold.num_tries)
        untold.not_before_s = time.time() + wait_s


def _tell_hangs(
    taken: Taken, hangs: Mapping[Run, Hang], channels: Sequence[Channel], job: str
) -> None:
    """Tell of runs that seem to hang by the channels that do not know yet."""
    untold = taken.untold
    for run, hang in list(hangs.items())[:_MOST_HANGS]:
        named = {f"{run.id} {channel}": channel for channel in channels}
        left = {name: named[name] for name in named if name not in untold.told_hangs}
        if not left or untold.num_hang_tries >= _MOST_TRIES + len(untold.told_hangs):
            continue
        untold.num_hang_tries += 1
        lines, has_failed = _deliver(
            _write_hang(run, hang, job), left, untold.told_hangs, taken, of=" that it seems to hang"
        )
        if has_failed:
            untold.not_before_s = time.time() + _RETRY_S
        _log(run.path, lines)


def _deliver(
    message: Message, left: Mapping[str, Channel], told: list[str], taken: Taken, *, of: str = ""
) -> tuple[list[str], bool]:
    """Send a message by these channels, and put the names of those that have it into `told`; return
    what became of it, `of` what it told, and whether a channel failed."""
    names = {channel: name for name, channel in left.items()}
    lines, has_failed = [], False
    for channel, reason in _send(list(names), message):
        if reason is None:
            told.append(names[channel])
            taken.keep()  # at once: another may not answer until the job is killed
        has_failed = has_failed or bool(reason)
        outcome = f"told{of}" if reason is None else f"not told: {reason}"
        lines.append(f"{channel.kind}: {outcome}")
    return lines, has_failed


def _hangs_of(runs: Sequence[Run]) -> dict[Run, Hang]:
    """Return the runs that go on, and seem to hang."""
    going_on = [run for run in runs if not run.verdict_file.exists()]
    found = {run: run.read_hang(run.newest_attempt()) for run in going_on}
    return {run: hang for run, hang in found.items() if hang and hang.recovered_s is None}


def _runs_of(path: Path, *, is_over: bool) -> tuple[list[Run], bool]:
    """Return the run, or the runs of the sweep, and whether all of these have been started; those
    before the first that has not been, unless the sweep is over."""
    if not is_sweep(path):
        return [Run(path)], True
    sweep = Sweep(path)
    spec = sweep.read()
    if spec.num_points is None:
        raise RunDirectoryError(f"{sweep.file} is damaged: it does not say how many runs there are")
    submitted = {name for job in spec.jobs for name in job.runs}
    is_over = is_over or time.time() - (spec.created_s or math.inf) > _LONGEST_SWEEP_S
    there = []
    for index in range(min(spec.num_points, files.MOST_ENTRIES)):
        run = sweep.run(index, spec.num_points)
        if run.path.is_dir():
            there.append(run)
        elif not is_over and run.id not in submitted:  # else it was deleted
            return there, False
    return there, True


def _verdicts_of(runs: Sequence[Run], *, most_asked: int | None) -> dict[str, Verdict] | None:
    """Return how each run ended, as its agents say, or else its scheduler, asked twice; None where
    one has not, or where the scheduler would have to be asked for more than `most_asked`."""
    found = {run.id: run.read_verdict() for run in reversed(runs)}
    verdicts = {name: verdict for name, verdict in found.items() if verdict is not None}
    left = [run for run in runs if run.id not in verdicts]
    if most_asked is not None and len(left) > most_asked:
        return None
    for pause_s in (0.0, _SURE_AFTER_S) if left else ():
        time.sleep(pause_s)  # a verdict may be on its way through a shared file system
        conditions = run_conditions(left)
        if any(condition.state in OPEN_STATES for condition in conditions.values()):
            return None
        for run in left:
            verdicts[run.id] = run.read_verdict() or end_verdict(run, conditions[run.id])
    return {run.id: verdicts[run.id] for run in runs}


# What is told.


def _write_message(
    path: Path, runs: Sequence[Run], verdicts: Mapping[str, Verdict], spec: RunSpec
) -> Message:
    job = spec.outline.name or "job"
    ends = [one_line(end_sentence(run, verdicts[run.id])) for run in runs]
    if is_sweep(path):
        counts = Counter(verdict.state for verdict in verdicts.values())
        state = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
        title = f"sweep {path.name}: {state or 'no run was started'}"
        bad = [end for run, end in zip(runs, ends, strict=True) if verdicts[run.id].state != "done"]
        lines = bad[:5] + ([f"and {len(bad) - 5} more"] if len(bad) > 5 else [])
    else:
        state = verdicts[path.name].state
        title, lines = f"{job}: {state}", ends
    code = exit_code_of_all(verdicts.values()) if runs else 1
    if path.name in verdicts:
        code = verdicts[path.name].exit_code_of_run
    lines += _headline(runs, verdicts)
    return _message(path, title, lines, "summary", JOB=job, STATE=state, EXIT_CODE=str(code))


def _write_hang(run: Run, hang: Hang, job: str) -> Message:
    lines = [f"run {run.id}: {one_line(hang.message)}"]
    title = f"{job}: seems to hang"
    return _message(run.path, title, lines, "stacks", JOB=job, STATE="hangs", EXIT_CODE="")


def _message(path: Path, title: str, lines: Sequence[str], verb: str, **fields: str) -> Message:
    """Return a message that ends with the command that says more."""
    said = map(Stars().text, lines)  # it leaves the machine
    text = "\n".join([*said, f"hpcdist {verb} {path}"])
    fields |= {"RUN": path.name, "PATH": str(path), "TITLE": title}
    variables = {f"HPCDIST_NOTIFY_{name}": value for name, value in fields.items()}
    return Message(title, text, variables)


def _headline(runs: Sequence[Run], verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return what the summary says first; nothing where it says no more than the verdict."""
    if not any(verdict.state == "done" for verdict in verdicts.values()):
        return []
    with suppress(Exception):  # the message is not to fail for it
        from hpcdist.summary import summarize
        from hpcdist.summary.report.report import make_sections

        states = {name: verdict.state for name, verdict in verdicts.items()}
        return [
            one_line(text)
            for section in make_sections(summarize(runs, states))
            for text in section.conclusions[:1]
        ]
    return []


# How it is told.


def _send(channels: Sequence[Channel], message: Message) -> Iterator[tuple[Channel, str | None]]:
    """Tell by all channels at once; yield each once it has answered, with why it failed, None where
    it did not."""
    answers: SimpleQueue[tuple[Channel, str | None]] = SimpleQueue()
    for channel in channels:
        send = partial(_send_by, channel, message, answers)
        threading.Thread(target=send, daemon=True).start()
    deadline_s = time.monotonic() + LIMIT_S
    left = list(channels)
    with suppress(Empty):
        while left:
            channel, reason = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
            left.remove(channel)
            yield channel, reason
    yield from ((channel, f"no answer within {LIMIT_S:.0f} s") for channel in left)


def _send_by(
    channel: Channel, message: Message, answers: SimpleQueue[tuple[Channel, str | None]]
) -> None:
    reason = None
    try:
        if channel.kind == COMMAND:
            _run(channel, message)
        else:
            _post(channel, message)
    except (HpcdistError, OSError, ImportError) as error:
        reason = one_line(str(error))[:_MOST_REASON] or type(error).__name__
    except Exception as error:  # noqa: BLE001 - apprise's; its text may hold the address
        reason = type(error).__name__
    answers.put((channel, reason))


def _run(channel: Channel, message: Message) -> None:
    """Run a command, with the message on its stdin. Raises OSError or UserError."""
    # A file, and not a pipe: what a command leaves in the background would keep that open.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                channel.argv(),
                input=f"{message.title}\n{message.text}\n".encode(errors="replace"),
                env={**os.environ, **message.fields},
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=LIMIT_S - 1,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"it had not ended after {LIMIT_S - 1:.0f} s", hint="") from None
        if done.returncode:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _MOST_SAID_BYTES))
            lines = said.read().decode(errors="replace").strip().splitlines()[-1:]
            text = ": ".join((f"exit code {done.returncode}", *lines))
            raise UserError(Stars().text(text), hint="")


def _post(channel: Channel, message: Message) -> None:
    """Write to a service. Raises UserError, whose text does not hold the address."""
    import apprise

    address = channel.address()
    if channel.kind == "ntfy" and address.startswith("http"):  # a server of one's own, too
        address = f"ntfy{address.removeprefix('http')}"
    service = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    kinds = _SERVICES.get(channel.kind)
    if service is None or (kinds and type(service).__name__ not in kinds):
        raise UserError(f"{channel.to} does not hold an address of {channel.kind}", hint="")
    with apprise.LogCapture(level=logging.WARNING) as said:  # type: ignore[no-untyped-call]
        is_told = service.notify(body=message.text, title=message.title)
        reasons = said.getvalue().splitlines()
    if not is_told:
        reason = _without_parts(address, reasons[-1]) if reasons else "it was not taken"
        raise UserError(reason, hint="")


def _without_parts(address: str, text: str) -> str:
    """Return a text without any part of a service's address that is long enough to be secret."""
    for part in sorted(re.split("[/?@:&=]", address), key=len)[::-1]:
        if len(part) >= 6:
            text = text.replace(part, "***")
    return Stars().text(text)


def _log(path: Path, outcomes: Sequence[str], *, is_last: bool = False) -> None:
    """Say what became of it, in the job's log too."""
    lines = [f"notify: {outcome}" for outcome in outcomes]
    lines += [f"notify: given up after {_MOST_TRIES} tries"] if is_last else []
    with suppress(OSError), (path / LOG_NAME).open("a") as log:
        os.chmod(log.fileno(), files.PRIVATE_FILE)
        for line in lines:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=log)
    for line in lines:
        files.print_line(f"hpcdist: {line}", sys.stderr)
