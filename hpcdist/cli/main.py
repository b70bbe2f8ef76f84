"""The command `hpcdist`: finds the verb, and turns every expected error into two lines on stderr.

Only bugs show a traceback. A verb returns the exit code, or None for 0; the codes are in
`hpcdist.base.errors`.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import stat
import sys
from collections.abc import Sequence

import click

from hpcdist.base import progress
from hpcdist.base.errors import EXIT_CODES, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER, HpcdistError
from hpcdist.base.text import nearest, one_line
from hpcdist.base.version import __version__

VERBS = {
    "submit": "Submit a job: to Slurm, LSF, PBS or Azure, or on this machine.",
    "plan": "Say when a job would start, how long it takes, and whether it fits.",
    "dev": "Hold nodes, in which one run after the other starts at once.",
    "init": "Make a first script.",
    "jobs": "List the jobs that can be submitted.",
    "runs": "List the runs that were submitted.",
    "status": "Show the state of runs, and how far they have come.",
    "watch": "Watch runs in a view that refreshes itself.",
    "logs": "Print what the ranks of a run print.",
    "stacks": "Show where the ranks of a living run are, and who waits for whom.",
    "profile": "Show what takes the time in the next steps of a living run.",
    "attach": "Open a shell beside a rank of a running run.",
    "forward": "Have a port of a rank's node, such as TensorBoard's, on this machine.",
    "cancel": "End runs.",
    "resume": "Continue a run that ended too soon, from its checkpoint.",
    "summary": "Compare runs: throughput, speed-up, where the time went.",
    "diff": "Name the first step at which two runs part, and what differs.",
    "course": "List the exercises of a course on distributed training, or start one.",
    "data": "Make, check and show data sets.",
    "drill": "Try a job for two minutes while things go wrong, before a long run.",
    "cluster": "Show, detect and copy cluster profiles.",
    "doctor": "Check a cluster step by step, and say how to fix what fails.",
    "gc": "Remove checkpoints and copies of code of runs that ended long ago.",
    "render": "Print what would be executed, without executing it.",
    "completion": "Have your shell complete jobs, runs, clusters, keys and files.",
    "explain": "Say what a script, key, exit code, verdict or word means.",
}
"""Verb -> its line in the help; hpcdist/cli/<verb>.py has a command of the same name."""
_COMPLETE = "_HPCDIST_COMPLETE"
"""Set where a shell asks what it may offer."""


class LazyGroup(click.Group):
    """Imports the module of a verb when the verb is used, and not for the list of verbs."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"hpcdist.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        if _COMPLETE in os.environ:
            from hpcdist.cli.completion import teach

            for each in getattr(command, "commands", {"": command}).values():
                teach(each)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = nearest(name, VERBS)
            suggestion = f"; did you mean {near}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}{suggestion}")
        return super().resolve_command(ctx, args)


_SHORT = [f"{code} {re.split(r'[;:,(]', text)[0].strip()}" for code, text in EXIT_CODES.items()]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: {', '.join(_SHORT)}.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def hpcdist() -> None:
    """Take a PyTorch job from a laptop to Slurm, LSF or PBS with one command.

    \b
    hpcdist submit ddp --nodes 2 --gpus 2 --local  2 simulated nodes, here, now
    hpcdist submit ddp --nodes 2 --gpus 2          on the cluster
    hpcdist submit train.py --gpus 4 -- --lr 0.1   any script for torchrun
    hpcdist summary                                speed-up, and lost time

    A RUN is a run's id, the beginning of one, or `last`. Where several runs may be named, the id
    of a sweep names all of its runs.
    """
    from hpcdist.cli.printing import note
    from hpcdist.machine.command import announce_waits

    announce_waits(note)
    progress.show()


_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)
"""The reader of our output, such as `head`, has seen enough; or where it goes, the disk is full."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    _open_closed_streams()
    os.umask(os.umask(0o077) | stat.S_IWOTH)  # files.close_umask; that import costs 13 ms
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold what no encoding takes
            stream.reconfigure(errors="backslashreplace")
    if "HPCDIST_SERVED" in os.environ:
        from hpcdist.base.version import begin_command

        begin_command()
    given = sys.argv[1:] if args is None else list(args)
    as_json = "--json" in given[: given.index("--") if "--" in given else None]
    try:
        if _COMPLETE in os.environ:
            from hpcdist.cli.completion import answer

            code = answer(hpcdist)
        else:
            code = hpcdist.main(given, "hpcdist", standalone_mode=False, obj=given)
        sys.stdout.flush()
    except HpcdistError as error:
        return _report(error.message, error.hint, error.exit_code, as_json=as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USER
    except click.UsageError as error:
        return _report(*_usage(error, given), EXIT_USER, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", "", EXIT_INTERRUPTED, as_json=as_json)
    except OSError as error:
        if error.errno not in _OF_OUTPUT or error.filename is not None:
            raise
        # What is left in the buffer goes nowhere: Python would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            _report(f"the output cannot be written: {error.strerror}", "", EXIT_FAILED)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _usage(error: click.UsageError, given: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with the words of a command, and a hint."""
    verb = next((f"hpcdist {word}" for word in given if word in VERBS), "hpcdist")
    command = error.ctx.command_path if error.ctx is not None else verb
    hint = f"see {command} --help"
    message = error.format_message()
    message = re.sub(r"a valid integer( range)?", "a whole number", message)
    message = re.sub(r"a valid float( range)?", "a number", message)
    if isinstance(error, click.NoSuchOption):
        # Of -get_timing, which scripts may have, click names -g alone.
        short = [word for word in given if word.startswith(error.option_name)]
        option = error.option_name if error.option_name.startswith("--") else short[0]
        near = _near_option(option, error.possibilities or (), given)
        message = f"No such option {option!r}"
        hint = f"did you mean {near}? {hint}" if near else hint
        params = error.ctx.command.params if error.ctx is not None else ()
        if any(param.name == "script_args" for param in params):
            hint += f"; options of a script go after --, as in: -- {option}"
    return message, hint


def _open_closed_streams() -> None:
    """Give the streams that the shell has closed (`>&-`) /dev/null: Python makes None of them, and
    the next file that is opened would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _near_option(option: str, known: Sequence[str], arguments: Sequence[str]) -> str | None:
    """Return the option, or the key of a job on the line, that is meant by one that is not."""
    from hpcdist.job.files import named_jobs
    from hpcdist.job.keys import job_keys

    name = option.strip("-").partition("=")[0].replace("-", "_")
    if not set(arguments).isdisjoint(named_jobs()):
        for key in job_keys():
            if name in (key.path, key.path.rpartition(".")[2]):
                return f"--set {key.path}=VALUE"
    near = nearest(name, [option[2:] for option in known])
    return f"--{near}" if near else None


def _report(message: str, hint: str, exit_code: int, *, as_json: bool = False) -> int:
    progress.StatusLine.clear()
    if as_json:
        import json

        print(json.dumps({"error": message, "hint": hint, "exit_code": exit_code}))
    is_plain = (
        not sys.stderr.isatty()
        or os.environ.get("NO_COLOR")
        or "dumb" in os.environ.get("TERM", "")
    )
    error = "error:" if is_plain else click.style("error:", fg="red", bold=True)
    print(error, one_line(message), file=sys.stderr)
    if hint:
        print("hint:", one_line(hint), file=sys.stderr)
    return exit_code
