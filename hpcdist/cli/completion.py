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
from typing import Any, TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError
from hpcdist.cli.options import Choice

VARIABLE = "_HPCDIST_COMPLETE"
"""Set by the scripts, to `bash_complete` and its like."""
_LIMIT_S = 3.0
"""A file system that does not answer must not keep a shell waiting."""
_MOST_RUNS = 200
_MOST_JOB_BYTES = 256_000
_SAFE = re.compile(r"[\w@%+=:,./ -]+")
_NAMED = ("data.name", "model.name")
_SHORT = ("nodes", "gpus", "cluster")
_FILES = ("FILE", "DIR", "FOLDER")
"""Metavars of options whose values the shell completes."""

_Item: TypeAlias = CompletionItem[str]
_Completer: TypeAlias = Callable[[click.Context, str], Iterable["_Item | str"]]
_FILE: _Item = CompletionItem("", type="file")


def _files(_ctx: click.Context, _typed: str) -> list[_Item]:
    return [_FILE]


def _jobs(ctx: click.Context, _typed: str) -> list[_Item]:
    from hpcdist.job.files import named_jobs

    is_code = ctx.params.get("is_module") or ctx.params.get("is_program")
    jobs = [] if is_code else [CompletionItem(name, help="a job") for name in named_jobs()]
    return [_FILE, *jobs]


def _runs(ctx: click.Context, _typed: str) -> list[str]:
    """Return the names of runs and sweeps, the newest first, by their folders alone."""
    from hpcdist.runs.run import ID, runs_folder

    folder = ctx.params.get("runs") or runs_folder(None)
    listed = os.listdir(folder) if os.path.isdir(folder) else []
    names = [name for name in listed if ID.fullmatch(name)]

    def submitted(name: str) -> str:
        found = re.search(r"-(\d{8}-\d{6})-", name)
        return found[1] if found else ""

    return ["last", *sorted(names, key=submitted, reverse=True)[:_MOST_RUNS]] if names else []


def _afters(ctx: click.Context, typed: str) -> list[str]:
    kind, colon, _ = typed.partition(":")
    runs = _runs(ctx, "")
    return [f"{kind}:{run}" for run in runs] if colon else [*runs, "ok:", "any:", "notok:"]


def _of_profiles(key: str | None, _ctx: click.Context, _typed: str) -> Iterable[str]:
    """Return the names of profiles, or what they have for a key: no scheduler is asked."""
    from hpcdist.cluster.load import all_profiles

    profiles = all_profiles()[1]
    values = list(profiles) if key is None else [of.get(key) for of in profiles.values()]
    return dict.fromkeys(value for value in values if isinstance(value, str))


def _hosts(_ctx: click.Context, _typed: str) -> list[str]:
    from hpcdist.runs.remote import known_hosts

    return known_hosts()


def _data_sets(_ctx: click.Context, _typed: str) -> list[str]:
    return _named_values("data.name", "train")


def _named_values(path: str, workload: str) -> list[str]:
    """Return the names that the meaning of a key lists, before anything in brackets."""
    from hpcdist.job.keys import job_keys

    meaning = next(key.meaning for key in job_keys(workload) if key.path == path)
    listed = re.sub(r" \(.*?\)", "", meaning.partition(".")[0])
    names = [name.strip() for name in re.split(r",| or ", listed)]
    return [name for name in names if re.fullmatch(r"\w+", name)]


def _settings(ctx: click.Context, typed: str) -> list[str]:
    """Return sections, the keys of a section, or the values of a key: always more than one where
    there are more, so that no shell puts a space behind half of it."""
    from hpcdist.job.keys import job_keys

    path, equals, _ = typed.partition("=")
    keys = {key.path: key for key in reversed(job_keys(_workload(ctx))) if key.path != "workload"}
    while not equals:
        section = typed.rpartition(".")[0]
        inner = [name for name in keys if name.rpartition(".")[0] == section]
        heads = [f"{name}{'.' if keys[name].value == 'section' else '='}" for name in inner]
        heads = [head for head in reversed(heads) if head.startswith(typed)]
        if len(heads) != 1:
            return heads
        typed = heads[0]
        path, equals, _ = typed.partition("=")
    return [f"{path}={value}" for value in _values(keys[path])]


def _workload(ctx: click.Context) -> str | None:
    """Return the workload of the job on the line; None where it is not known."""
    from hpcdist.job.files import find_job

    if ctx.params.get("is_module") or ctx.params.get("is_program"):
        return "module" if ctx.params["is_module"] else "program"
    try:
        file = find_job(ctx.params.get("job_name") or "")
    except HpcdistError:
        return None
    if file.kind == "script":
        return "script"
    # Not by a parser of YAML, whose import takes 30 ms.
    text = files.read_bytes(file.path, most_bytes=_MOST_JOB_BYTES).decode(errors="replace")
    found = re.search(r"^workload: *(\w+)", text, re.MULTILINE)
    return found and found[1]


def _values(key: Any) -> list[str]:
    """Return the values that a key may have, its default the last."""
    from hpcdist.job.check import annotation_at
    from hpcdist.job.keys import values_of
    from hpcdist.job.spec import JOB_TYPES

    workload = key.workloads[0]
    values = list(values_of(annotation_at(JOB_TYPES[workload], tuple(key.path.split(".")))))
    values += _named_values(key.path, workload) if key.path in _NAMED else []
    default = [] if key.default in ("unset", "none", "required") else [key.default]
    return list(dict.fromkeys([*values, *default])) or [""]


def _sweeps(ctx: click.Context, typed: str) -> list[str]:
    """Return the last key, or the last value, of `nodes=1,2 train.lr=0.1,`."""
    before, space, last = typed.rpartition(" ")
    key, equals, values = last.partition("=")
    given, comma, value = values.rpartition(",")
    if not equals:
        keys = [*(f"{name}=" for name in _SHORT), *_settings(ctx, key)]
        return [f"{before}{space}{one}" for one in keys]
    found = [one.partition("=")[2] for one in _settings(ctx, f"{key}={value}")]
    return [f"{before}{space}{key}={given}{comma}{one}" for one in found]


def _explained(ctx: click.Context, typed: str) -> list[_Item | str]:
    from hpcdist.cli.explain import known_names

    names = [CompletionItem(one, help=kind) for kind, of in known_names().items() for one in of]
    return [*_jobs(ctx, typed), *names, *_runs(ctx, typed)]


_COMPLETERS: dict[str, _Completer] = {
    "job_name": _jobs,
    "script_args": _files,
    "run_name": _runs,
    "run_names": _runs,
    "first": _runs,
    "second": _runs,
    "against": lambda ctx, typed: [_FILE, *_runs(ctx, typed)],
    "summary run_names": lambda ctx, typed: [_FILE, *_runs(ctx, typed)],
    "after": _afters,
    "cluster": partial(_of_profiles, None),
    "cluster show name": partial(_of_profiles, None),
    "partition": partial(_of_profiles, "partition"),
    "account": partial(_of_profiles, "account"),
    "qos": partial(_of_profiles, "qos"),
    "host": _hosts,
    "setup name": _hosts,
    "data check name": _data_sets,
    "data show name": _data_sets,
    "overrides": _settings,
    "sweeps": _sweeps,
    "explain job_name": _explained,
}
"""Name of a parameter, with its command where that matters -> what can stand there."""


def _teach(command: click.Command, args: list[str]) -> None:
    """Have the parameters of the command on the line complete what only hpcdist knows."""
    context = click.Context(command)
    path: list[str] = []
    rest = list(args)
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(context, word := rest.pop(0))
        if inner is not None:
            command, path = inner, [*path, word]
    if rest and rest[-1].startswith("-"):  # click reads no argument beside an option without value
        rest.pop()
    given = command.make_context(command.name, rest, parent=context, resilient_parsing=True)
    for param in command.params:
        name = str(param.name)
        completer = _COMPLETERS.get(" ".join([*path, name]), _COMPLETERS.get(name))
        if completer is None and param.metavar in _FILES:
            completer = _files
        if completer is not None and not isinstance(param.type, click.Choice):
            offer = partial(_offered, completer, given)
            param.shell_complete = offer  # type: ignore[method-assign]


def _offered(
    completer: _Completer, given: click.Context, _ctx: click.Context, typed: str
) -> list[_Item]:
    items = [
        CompletionItem(one) if isinstance(one, str) else one for one in completer(given, typed)
    ]
    return [item for item in items if item is _FILE or item.value.startswith(typed)]


class _Completion(ShellComplete):
    """Offers what can stand for a whole word, also for the value of `--option=value`."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        _teach(self.cli, args)
        option, equals, _ = incomplete.partition("=")
        before = f"{option}=" if equals and option.startswith("--") else ""
        return [
            CompletionItem(f"{before}{item.value}", type=item.type, help=item.help)
            for item in super().get_completions(args, incomplete)
            if item.type == "file" or _SAFE.fullmatch(str(item.value))
        ]


class _Bash(_Completion, BashComplete):
    # bash splits words at = and :, so the line itself is given, and what stands behind the last of
    # these is what it inserts.
    source_template = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type == file ]]; then compopt -o default; else COMPREPLY+=("$value"); fi
    done < <(COMP_LINE="${COMP_LINE:0:$COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        is_new = line[-1:].isspace() and split_arg_string(f"{line}x")[-1] == "x"
        return (words[1:], "") if is_new else (words[1:-1], words[-1])

    def format_completion(self, item: CompletionItem[Any]) -> str:
        typed, value = self.get_completion_args()[1], str(item.value)
        if " " not in typed:  # else it is quoted, and one word to bash
            value = value[max(typed.rfind("="), typed.rfind(":")) + 1 :]
        return f"{item.type},{value}"


class _Zsh(_Completion, ZshComplete):
    pass


class _Fish(_Completion, FishComplete):
    pass


_SHELLS: dict[str, type[ShellComplete]] = {one.name: one for one in (_Bash, _Zsh, _Fish)}


def answer(command: click.Command) -> int:
    """Print what the shell may offer; nothing, and no error, where that cannot be known."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    shell, _, instruction = os.environ.pop(VARIABLE).partition("_")
    if instruction != "complete" or shell not in _SHELLS:
        return 1
    try:
        print(_SHELLS[shell](command, {}, "hpcdist", VARIABLE).complete())
        sys.stdout.flush()
    except (Exception, SystemExit):  # noqa: BLE001 - a shell's line is no place for errors
        return 1
    return 0


@click.command
@click.argument("shell", type=Choice(list(_SHELLS)), required=False)
def completion(*, shell: str | None) -> None:
    """Print what makes a shell complete jobs, runs, clusters, keys and their values, and files;
    without SHELL, for the one that $SHELL names.

    \b
    hpcdist completion bash >> ~/.bashrc
    hpcdist completion zsh >> ~/.zshrc      below the line with compinit
    hpcdist completion fish > ~/.config/fish/completions/hpcdist.fish
    """
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in _SHELLS:
        raise click.UsageError(f"name the shell: {', '.join(_SHELLS)}")
    command = click.get_current_context().find_root().command
    sys.stdout.write(_SHELLS[chosen](command, {}, "hpcdist", VARIABLE).source())
