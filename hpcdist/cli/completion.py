"""`hpcdist completion`: what a shell offers when TAB is pressed, by click's own completion.

Every TAB starts this command, so what is offered is found by looking at names of files alone: no
scheduler is asked, no run is read, and a mistake of any kind offers nothing. Files are completed by
the shell itself, which knows how to quote them; other values are offered if no shell acts on them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from hpcdist.cli.options import Choice

VARIABLE = "_HPCDIST_COMPLETE"
"""Set by the scripts, to `bash_complete` and its like."""
_LIMIT_S = 3
"""A file system that does not answer must not keep a shell waiting."""
_MOST_RUNS = 200
_SAFE = re.compile(r"[\w@%+=:,./-]+")
_FILES = ("FILE", "DIR", "FOLDER")
"""Metavars of options whose values the shell completes."""
_FILE = ""
"""Stands for the names of files."""

_Completer: TypeAlias = Callable[[click.Context, str], Iterable[str]]


def _jobs(ctx: click.Context, _typed: str) -> list[str]:
    from hpcdist.job.files import named_jobs

    is_code = ctx.params.get("is_module") or ctx.params.get("is_program")
    return [_FILE, *([] if is_code else named_jobs())]


def _runs(ctx: click.Context, _typed: str) -> list[str]:
    """Return the names of runs and sweeps, the newest first, by their folders alone."""
    from hpcdist.runs.run import ID, runs_folder

    folder = ctx.params.get("runs") or runs_folder(None)
    listed = os.listdir(folder) if os.path.isdir(folder) else []
    names = [name for name in listed if ID.fullmatch(name)]
    names.sort(key=lambda name: re.findall(r"-(\d{8}-\d{6})-", name)[-1:], reverse=True)
    return ["last", *names[:_MOST_RUNS]] if names else []


def _clusters(_ctx: click.Context, _typed: str) -> Iterable[str]:
    from hpcdist.cluster.load import all_profiles

    return all_profiles()[1]


def _keys(_ctx: click.Context, typed: str) -> list[str]:
    """Return sections, or the keys of a section with their defaults: always more than one where
    there are more, so that no shell puts a space behind half of it."""
    from hpcdist.job.keys import job_keys

    keys = {key.path: key for key in reversed(job_keys()) if key.path != "workload"}
    while True:
        inner = [name for name in keys if name.rpartition(".")[0] == typed.rpartition(".")[0]]
        heads = {
            f"{name}." if keys[name].value == "section" else f"{name}={keys[name].default}"
            for name in inner
            if name.startswith(typed)
        }
        if len(heads) != 1 or not (head := heads.pop()).endswith("."):
            return sorted(heads or {head})
        typed = head


def _explained(ctx: click.Context, typed: str) -> list[str]:
    from hpcdist.cli.explain import known_names

    return [*_jobs(ctx, typed), *known_names(), *_runs(ctx, typed)]


_COMPLETERS: dict[str, _Completer] = {
    "job_name": _jobs,
    "script_args": lambda _ctx, _typed: [_FILE],
    **dict.fromkeys(("run_name", "run_names", "first", "second", "after", "against"), _runs),
    **dict.fromkeys(("cluster", "show name"), _clusters),
    "overrides": _keys,
    "explain job_name": _explained,
}
"""Name of a parameter, with its verb where that matters -> what can stand there."""


def teach(command: click.Command) -> None:
    """Have the parameters of a command complete what only hpcdist knows."""
    for param in command.params:
        name = str(param.name)
        completer = _COMPLETERS.get(f"{command.name} {name}", _COMPLETERS.get(name))
        if completer is None and param.metavar in _FILES:
            completer = _COMPLETERS["script_args"]
        if completer is not None and not isinstance(param.type, click.Choice):
            offer = partial(_offered, completer)
            param.shell_complete = offer  # type: ignore[method-assign]


def _offered(completer: _Completer, ctx: click.Context, typed: str) -> list[CompletionItem[str]]:
    return [
        CompletionItem(name, type="plain" if name else "file")
        for name in completer(ctx, typed)
        if not name or (name.startswith(typed) and _SAFE.fullmatch(name))
    ]


def answer(command: click.Command) -> int:
    """Print what the shell may offer; nothing, and no error, where that cannot be known."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(_LIMIT_S)
    try:
        return shell_complete(command, {}, "hpcdist", VARIABLE, os.environ[VARIABLE])
    except (Exception, SystemExit):  # noqa: BLE001 - a shell's line is no place for errors
        return 1


@click.command
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print what makes a shell complete jobs, runs, clusters, keys and files.

    \b
    hpcdist completion bash >> ~/.bashrc
    hpcdist completion zsh >> ~/.zshrc      below the line with compinit
    hpcdist completion fish > ~/.config/fish/completions/hpcdist.fish
    """
    chosen = get_completion_class(shell)
    assert chosen is not None
    command = click.get_current_context().find_root().command
    sys.stdout.write(chosen(command, {}, "hpcdist", VARIABLE).source())
