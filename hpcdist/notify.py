"""Tell the user that a run has ended, or seems to hang: one try by each channel of `notify`.

The agent of node 0 does that alone, by the channels in the spec of its own run, which it has
checked; no command does. Where that agent is killed, the mail of the scheduler alone tells.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import one_line
from hpcdist.cluster.channels import parse_channel, read_address
from hpcdist.machine.command import python_command
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Hang

LIMIT_S = 20.0
"""Time for all channels together: a service that does not answer must hold no job."""
_MOST_REASON = 200
_MOST_SAID_BYTES = 4_096
_MOST_LOG_BYTES = 1 << 16


def tell_end(run: Run, job: str, notify: Sequence[str]) -> None:
    """Tell that a run has ended, if it has; wait until that is done, or its time is over."""
    if not notify or (verdict := run.read_verdict()) is None:
        return
    sentence = "done" if verdict.state == "done" else f"{verdict.state}: {verdict.message}"
    lines = [f"{job}: {verdict.state}", f"run {run.id} {sentence}", f"hpcdist summary {run.path}"]
    _tell(run, lines, notify, STATE=verdict.state, EXIT_CODE=str(verdict.exit_code_of_run), JOB=job)


def tell_hang(run: Run, job: str, hang: Hang, notify: Sequence[str]) -> None:
    """Tell that a run seems to hang, in a thread; return at once."""
    lines = [f"{job}: seems to hang", f"run {run.id}: {hang.message}", f"hpcdist stacks {run.path}"]
    fields = {"STATE": "hangs", "EXIT_CODE": "", "JOB": job}
    threading.Thread(target=_tell, args=(run, lines, notify), kwargs=fields, daemon=True).start()


def read_last(run: Run) -> str | None:
    """Return the last line of a run's notify.log; None where there is none."""
    with suppress(OSError):
        content = files.read_bytes(run.notify_log, most_bytes=_MOST_LOG_BYTES)
        return next(iter(content.decode(errors="replace").splitlines()[::-1]), None)
    return None


def _tell(run: Run, lines: Sequence[str], notify: Sequence[str], **fields: str) -> None:
    """Send the lines, of which the first is the title, by each channel at the same time, and write
    into notify.log what became of it."""
    channels = [channel for channel in map(parse_channel, notify) if channel[0] != "mail"]
    if not channels:
        return
    title, *rest = (Stars().text(one_line(line)) for line in lines)  # they leave the machine
    fields |= {"RUN": run.id, "PATH": str(run.path), "TITLE": title}
    own = {f"HPCDIST_NOTIFY_{name}": one_line(text) for name, text in fields.items()}
    message = "\n".join([title, *rest, ""]).encode(errors="replace")
    with ThreadPoolExecutor(len(channels)) as pool:
        outcomes = pool.map(lambda channel: _send(channel, message, os.environ | own), channels)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {title}: {', '.join(outcomes)}"
    with suppress(OSError), open(files.open_to_append(run.notify_log), "a") as log:
        print(line, file=log)


def _send(channel: tuple[str, str], message: bytes, environment: dict[str, str]) -> str:
    """Start a command, or a process that asks a service, with the message on its stdin; return what
    became of it, in words."""
    kind, rest = channel
    if kind == "command":
        program, *words = shlex.split(rest)
        argv = [os.path.expanduser(program), *words]
    else:
        argv = python_command("from hpcdist.notify import post; post()", rest)
    # A file, and not a pipe: what a command leaves in the background would keep that open.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                argv,
                input=message,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not sent by {kind}: no end within {LIMIT_S:.0f} s"
        except OSError as error:
            return f"not sent by {kind}: {files.reason(error)}"
        if done.returncode == 0:
            return f"sent by {kind}"
        said.seek(max(0, said.seek(0, os.SEEK_END) - _MOST_SAID_BYTES))
        words = said.read().decode(errors="replace").strip().splitlines()[-1:]
        reason = one_line(Stars().text(": ".join([f"exit code {done.returncode}", *words])))
        return f"not sent by {kind}: {reason[:_MOST_REASON]}"


def post() -> None:
    """Send stdin by apprise to the service whose address is where sys.argv says: a process of its
    own, since a service may never answer."""
    address = ""
    try:
        import apprise

        address = read_address(sys.argv[1])
        title, _, body = sys.stdin.read().partition("\n")
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as said:  # type: ignore[no-untyped-call]
            service = apprise.Apprise.instantiate(address)
            is_sent = service is not None and service.notify(body=body, title=title)
            reasons = said.getvalue().splitlines()[-1:]
    except (ImportError, UserError) as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001 - apprise's; its text may hold the address
        sys.exit(type(error).__name__)
    if not is_sent:
        reason = reasons[0] if reasons else "the address is none that apprise knows"
        for part in re.split("[/?@:&=]", address):
            reason = reason.replace(part, "***") if len(part) >= 6 else reason
        sys.exit(reason)
