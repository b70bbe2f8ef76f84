"""`hpcdist completion`: what a shell offers when TAB is pressed, and the script that has it ask.

Every TAB starts this command, so what is offered is found by looking at names of files alone: no
scheduler is asked, no run is read, and a mistake of any kind offers nothing.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.ownership import doors
from hpcdist.base.text import one_line
from hpcdist.cli.options import Choice

VARIABLE = "_HPCDIST_COMPLETE"
"""Set by the scripts, to `bash_complete` and its like."""
_LIMIT_S = 3.0
"""A file system that does not answer must not keep a shell waiting."""
_MOST_RUNS = 200
_MOST_JOB_BYTES = 256_000
_PART = "part"
"""Type of what is not whole yet: no space follows it."""

_Items: TypeAlias = Iterable[CompletionItem[str]]
_Completer: TypeAlias = Callable[[click.Context, str], _Items]


def _whole(value: str, about: str = "") -> CompletionItem[str]:
    return CompletionItem(value, help=about or None)


def _part(value: str, about: str = "") -> CompletionItem[str]:
    return CompletionItem(value, type=_PART, help=about or None)


# What there is.


def _paths(typed: str, suffixes: tuple[str, ...] = ("",), *, folders: bool = False) -> _Items:
    """Give files with one of the suffixes, and folders to look into."""
    folder, _, name = typed.rpartition("/")
    above = f"{folder}/" if "/" in typed else ""
    with suppress(OSError), os.scandir(os.path.expanduser(above) or ".") as listed:
        for entry in sorted(listed, key=lambda entry: entry.name):
            is_hidden = entry.name.startswith(".") and not name.startswith(".")
            if is_hidden or not entry.name.startswith(name):
                continue
            if entry.is_dir():
                yield _part(f"{above}{entry.name}/")
            elif not folders and entry.name.endswith(suffixes):
                yield _whole(f"{above}{entry.name}")


def _files(_ctx: click.Context, typed: str) -> _Items:
    return _paths(typed)


def _folders(_ctx: click.Context, typed: str) -> _Items:
    return _paths(typed, folders=True)


def _jobs(ctx: click.Context, typed: str) -> _Items:
    from hpcdist.job.files import named_jobs

    if ctx.params.get("is_module"):
        return
    if not ctx.params.get("is_program"):
        yield from (_whole(name, "a job") for name in named_jobs())
    is_program = ctx.params.get("is_program")
    yield from _paths(typed, ("",) if is_program else (".py", ".yaml", ".yml"))


def _script_args(ctx: click.Context, typed: str) -> _Items:
    """Offer files to scripts, which may be given any; jobs take no arguments."""
    from hpcdist.job.files import named_jobs

    return () if ctx.params.get("job_name") in named_jobs() else _paths(typed)


def _run_names(ctx: click.Context) -> Iterator[str]:
    """Give the names of runs and sweeps, the newest first, by their folders alone."""
    from hpcdist.runs.run import ID, runs_folder

    folder = ctx.params.get("runs") or runs_folder(None)
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if ID.fullmatch(name)]
        yield from sorted(names, key=_time_in, reverse=True)[:_MOST_RUNS]


def _time_in(name: str) -> str:
    found = re.search(r"-(\d{8}-\d{6})-", name)
    return found[1] if found else ""


def _runs(ctx: click.Context, _typed: str) -> _Items:
    names = list(_run_names(ctx))
    yield from [_whole("last", "the newest run")] if names else []
    yield from map(_whole, names)


def _runs_or_files(ctx: click.Context, typed: str) -> _Items:
    yield from _runs(ctx, typed)
    yield from _paths(typed)


def _afters(ctx: click.Context, typed: str) -> _Items:
    kind, colon, _ = typed.partition(":")
    before = f"{kind}:" if colon else ""
    yield from (_whole(f"{before}{run.value}") for run in _runs(ctx, ""))
    if not colon:
        yield from (_part(f"{name}:") for name in ("ok", "any", "notok"))


def _ranks(ctx: click.Context, _typed: str) -> _Items:
    """Give the ranks that have a log."""
    from hpcdist.runs.run import Run, runs_folder
    from hpcdist.runs.sweep import find_runs

    folder = Path(ctx.params.get("runs") or runs_folder(None))
    name = ctx.params.get("run_name") or "last"
    run = Run(folder / name) if (folder / name).is_dir() else find_runs(folder, name)[-1]
    ranks = dict.fromkeys(rank for rank, _, _ in run.log_files())
    return [_whole(str(rank)) for rank in ranks][:1000]


def _clusters(_ctx: click.Context, _typed: str) -> _Items:
    from hpcdist.cluster.load import all_profiles

    return [_whole(name, str(of.get("scheduler") or "")) for name, of in all_profiles()[1].items()]


def _of_profiles(key: str) -> _Completer:
    """Offer what profiles have for a key: the scheduler itself is not asked."""

    def complete(_ctx: click.Context, _typed: str) -> _Items:
        from hpcdist.cluster.load import all_profiles

        values = [of.get(key) for of in all_profiles()[1].values()]
        return [_whole(value) for value in dict.fromkeys(values) if isinstance(value, str)]

    return complete


def _shipped(_ctx: click.Context, _typed: str) -> _Items:
    from hpcdist.cluster.load import shipped_names

    return map(_whole, shipped_names())


def _hosts(_ctx: click.Context, _typed: str) -> _Items:
    from hpcdist.runs.remote import known_hosts

    names = known_hosts()
    with suppress(OSError):
        for line in Path("~/.ssh/config").expanduser().read_text().splitlines():
            words = line.split()
            if words and words[0].lower() == "host":
                names += [name for name in words[1:] if not set(name) & set("*?!")]
    return map(_whole, dict.fromkeys(names))


def _data_sets(_ctx: click.Context, _typed: str) -> _Items:
    return map(_whole, _named_values("data.name"))


# Keys of jobs.


def _workload(ctx: click.Context) -> str | None:
    """Return the workload of the job on the line; None where it is not known."""
    from hpcdist.job.files import find_job

    name = ctx.params.get("job_name")
    if not name:
        return None
    if ctx.params.get("is_module") or ctx.params.get("is_program"):
        return "module" if ctx.params["is_module"] else "program"
    file = find_job(name)
    if file.kind == "script":
        return "script"
    # Not by a parser of YAML, whose import takes 30 ms.
    text = files.read_bytes(file.path, most_bytes=_MOST_JOB_BYTES).decode(errors="replace")
    found = re.search(r"^workload: *(\w+)", text, re.MULTILINE)
    return found and found[1]


def _named_values(path: str, workload: str = "train") -> list[str]:
    """Return the names that the meaning of a key lists, before anything in brackets."""
    from hpcdist.job.keys import job_keys

    meaning = next(key.meaning for key in job_keys(workload) if key.path == path)
    listed = re.sub(r" \(.*?\)", "", meaning.partition(".")[0])
    names = [name.strip() for name in re.split(r",| or ", listed)]
    return [name for name in names if re.fullmatch(r"\w+", name)]


def _settings(ctx: click.Context, typed: str) -> _Items:
    """Offer sections, the keys of a section, and the values of a key."""
    from hpcdist.base.errors import HpcdistError
    from hpcdist.job.keys import job_keys

    workload = None
    with suppress(HpcdistError):
        workload = _workload(ctx)
    keys = job_keys(workload)
    path, equals, value = typed.partition("=")
    if equals:
        found = next(key for key in keys if key.path == path)
        yield from _values(found.path, found.default, found.workloads[0], value)
        return
    section = path.rpartition(".")[0]
    for key in keys:
        if key.path.rpartition(".")[0] == section and key.path != "workload":
            about = key.meaning.partition(". ")[0]
            yield _part(f"{key.path}{'.' if key.value == 'section' else '='}", about)


_NAMED = ("data.name", "model.name")
_FILES = ("data.root", "checkpoint.resume", "container.image")


def _values(path: str, default: str, workload: str, typed: str) -> _Items:
    from hpcdist.job.check import annotation_at
    from hpcdist.job.keys import values_of
    from hpcdist.job.spec import JOB_TYPES

    annotation = annotation_at(JOB_TYPES[workload], tuple(path.split(".")))
    values = dict.fromkeys([*values_of(annotation)], "")
    if path in _NAMED:
        values |= dict.fromkeys(_named_values(path, workload), "")
    if default not in ("unset", "none", "required"):
        values[default] = "the default"
    if path in _FILES:
        for item in _paths(typed):
            yield CompletionItem(f"{path}={item.value}", type=item.type)
    yield from (_whole(f"{path}={value}", about) for value, about in values.items())


_SHORT = ("nodes", "gpus", "cluster")


def _sweeps(ctx: click.Context, typed: str) -> _Items:
    """Offer the last key, or the last value, of `nodes=1,2 train.lr=0.1,`."""
    before, space, last = typed.rpartition(" ")
    key, equals, values = last.partition("=")
    given, comma, value = values.rpartition(",")
    again = f"{before}{space}"
    if not equals:
        yield from (_part(f"{again}{name}=") for name in _SHORT)
    for item in _settings(ctx, f"{key}={value}" if equals else key):
        text = item.value
        if equals:
            text = f"{key}={given}{comma}{text.partition('=')[2]}"
        yield _part(f"{again}{text}")


def _goals(_ctx: click.Context, _typed: str) -> _Items:
    return [_part(f"{name}=") for name in ("accuracy", "loss", "train_loss")]


def _explained(ctx: click.Context, typed: str) -> _Items:
    from hpcdist.cli.explain import known_names

    if not typed.startswith((".", "/", "~")):
        for kind, names in known_names().items():
            keys = [name for name in names if kind != "key" or "." in name or "." not in typed]
            yield from (_whole(name, kind) for name in dict.fromkeys(keys))
        yield from _runs(ctx, typed)
    yield from _jobs(ctx, typed)


_COMPLETERS: dict[str, _Completer] = {
    "job_name": _jobs,
    "script_args": _script_args,
    "run_name": _runs,
    "run_names": _runs,
    "first": _runs,
    "second": _runs,
    "after": _afters,
    "rank": _ranks,
    "ranks": _ranks,
    "cluster": _clusters,
    "partition": _of_profiles("partition"),
    "account": _of_profiles("account"),
    "qos": _of_profiles("qos"),
    "host": _hosts,
    "setup name": _hosts,
    "cluster show name": _clusters,
    "cluster copy name": _shipped,
    "overrides": _settings,
    "sweeps": _sweeps,
    "goal": _goals,
    "against": _runs_or_files,
    "summary run_names": _runs_or_files,
    "explain job_name": _explained,
}
"""Name of a parameter, with its command where that matters -> what can stand there."""


def _completer(command: str, param: click.Parameter) -> _Completer | None:
    """Return what completes a parameter; None for one that click itself knows, or nobody."""
    if isinstance(param.type, click.Choice):
        return None
    if command.startswith("data ") and param.name == "name":
        return _data_sets
    for name in (f"{command} {param.name}", str(param.name)):
        if name in _COMPLETERS:
            return _COMPLETERS[name]
    metavar = str(param.metavar or "")
    return {"FILE": _files, "DIR": _folders, "FOLDER": _folders}.get(metavar)


# The shells.


class _Completion(ShellComplete):
    """Reads the line up to the cursor from COMP_LINE, whatever the shell takes for words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = _line()
        words = _words(line)
        is_new = not words or (line[-1:].isspace() and not _is_quoted(line))
        return (words[1:], "") if is_new else (words[1:-1], words[-1])

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        _teach(self.cli, args)
        option, equals, value = incomplete.partition("=")
        before = f"{option}=" if equals and option.startswith("--") else ""
        found = super().get_completions(args, incomplete)
        typed = value if before else incomplete
        return [
            CompletionItem(f"{before}{item.value}", type=item.type, help=item.help)
            for item in found
            if str(item.value).startswith(typed) and self._can_insert(str(item.value))
        ]

    def _can_insert(self, value: str) -> bool:
        """Return whether a shell may put a value into the line: names of files and values of
        profiles may be others', and end a line of the answer."""
        return value.isprintable()


def _line() -> str:
    """Return the line up to the cursor."""
    return os.environ.get("COMP_LINE", "")


def _words(line: str) -> list[str]:
    """Return the words of a line, of which the last may be open."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quote is open
        words.append(lexer.token)
    return words


def _is_quoted(line: str) -> bool:
    """Return whether a quote is open at the end of a line."""
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def _teach(command: click.Command, args: list[str]) -> None:
    """Have the parameters of the command on the line complete what only hpcdist knows."""
    context = click.Context(command)
    path: list[str] = []
    rest = list(args)
    while isinstance(command, click.Group) and rest:
        word = rest.pop(0)
        if word.startswith("-"):
            continue
        inner = command.get_command(context, word)
        if inner is None:
            return
        command, path = inner, [*path, word]
    if rest and rest[-1].startswith("-"):  # click reads no argument beside an option without value
        rest.pop()
    given = command.make_context(command.name, rest, parent=context, resilient_parsing=True)
    for param in command.params:
        completer = _completer(" ".join(path), param)
        if completer is not None:
            offer = functools.partial(_offered, completer, given)
            param.shell_complete = offer  # type: ignore[method-assign]


def _offered(
    completer: _Completer, given: click.Context, _ctx: click.Context, typed: str
) -> list[CompletionItem[str]]:
    return [item for item in completer(given, typed) if item.value.startswith(typed)]


_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")


class _Bash(_Completion):
    name = "bash"
    # bash itself splits words at = and :, and inserts what stands behind the last of them.
    source_template = """\
%(complete_func)s() {
    local response item
    COMPREPLY=()
    response=$(COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2> /dev/null)
    [ -n "$response" ] || return 0
    while IFS= read -r item; do
        COMPREPLY+=("${item#*,}")
        if [ "${item%%%%,*}" = part ]; then compopt -o nospace 2> /dev/null; fi
    done <<< "$response"
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s 2> /dev/null ||
    complete -F %(complete_func)s %(prog_name)s
"""

    def _can_insert(self, value: str) -> bool:
        """Bash inserts a value as it is: within quotes, where no escape is right for both kinds of
        them, what has special signs is not offered."""
        is_plain = not _SPECIAL.search(value.replace(" ", ""))
        return super()._can_insert(value) and (is_plain or not _is_quoted(_line()))

    def format_completion(self, item: CompletionItem[Any]) -> str:
        line = _line()
        value = str(item.value)
        if not _is_quoted(line):
            breaks = set(os.environ.get("COMP_WORDBREAKS", "")) & set("=:")
            typed = self.get_completion_args()[1]
            kept = max((typed.rfind(sign) for sign in breaks), default=-1) + 1
            value = _SPECIAL.sub(r"\\\g<0>", value[kept:])
        return f"{item.type},{value}"


class _Zsh(_Completion):
    name = "zsh"
    source_template = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a response plain parts
    local kind value about
    response=("${(@f)$(COMP_LINE="${words[1,CURRENT-1]} $PREFIX" %(complete_var)s=zsh_complete \\
        ${~words[1]} 2> /dev/null)}")
    for kind value about in "${response[@]}"; do
        value="${value//:/\\\\:}"
        if [[ $kind == part ]]; then parts+=("$value:$about"); else plain+=("$value:$about"); fi
    done
    if (( $#plain )); then _describe -V values plain -U; fi
    if (( $#parts )); then _describe -V parts parts -U -S ''; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type}\n{item.value}\n{one_line(item.help or '-')}"


class _Fish(_Completion):
    name = "fish"
    source_template = """\
function %(complete_func)s
    set -lx COMP_LINE (commandline -cp)
    set -lx %(complete_var)s fish_complete
    set -l words (commandline -opc)
    command $words[1] 2> /dev/null
end
complete --no-files --keep-order --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.value}\t{one_line(item.help)}" if item.help else str(item.value)


_SHELLS: dict[str, type[_Completion]] = {one.name: one for one in (_Bash, _Zsh, _Fish)}
for _shell in _SHELLS.values():
    add_completion_class(_shell)


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


# The verb.


@click.command
@click.argument("shell", type=Choice(list(_SHELLS)), required=False)
@click.option("--install", is_flag=True, help="Put the script in its place, and name the place.")
def completion(*, shell: str | None, install: bool) -> None:
    """Print what makes a shell complete jobs, runs, clusters, keys and their values, files and
    ranks; without SHELL, for the one that $SHELL names.

    \b
    hpcdist completion --install
    source <(hpcdist completion bash)       for this shell alone

    --install writes one file, and for bash and zsh one line in ~/.bashrc or ~/.zshrc that reads it.
    It may be repeated.
    """
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in _SHELLS:
        raise click.UsageError(f"name the shell: {', '.join(_SHELLS)}")
    command = click.get_current_context().find_root().command
    script = _SHELLS[chosen](command, {}, "hpcdist", VARIABLE).source()
    if not install:
        sys.stdout.write(script)
        return
    for line in _install(chosen, script):
        print(line)


def _install(shell: str, script: str) -> Iterator[str]:
    """Write the script, and the line that reads it; say what was done."""
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    if shell == "fish":
        yield _write(config / "fish/completions/hpcdist.fish", script)
        return
    path = data / f"hpcdist/completion.{shell}"
    yield _write(path, script)
    file = shlex.quote(str(path))
    line = f"[ ! -r {file} ] || . {file}"
    if shell == "zsh":
        ready = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
        line = f"[ ! -r {file} ] || {{ {ready}; . {file}; }}"
    zshrc = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    yield _add_line(home / ".bashrc" if shell == "bash" else zshrc, line, shell)
    yield "open a new shell to have it"


def _write(path: Path, script: str) -> str:
    try:
        if path.is_file() and path.read_text() == script:
            return f"{path} is as it should be"
        path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        if others := doors(path.parent):  # a shell reads it each time it starts
            raise UserError(
                f"{others[0]}, and could have your shell run anything",
                hint=f"close it with: chmod go-w {shlex.quote(str(others[0].path))}",
            )
        files.write_whole(path, script)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}",
            hint="print it with hpcdist completion SHELL, and put it where your shell reads it",
        ) from None
    return f"wrote {path}"


def _add_line(rc: Path, line: str, shell: str) -> str:
    """Add a line to a file that a shell reads at its start, unless it is there, or would break the
    file."""
    added = f"\n# hpcdist completion --install\n{line}\n"
    by_hand = f"{rc} was not changed; add this line yourself: {line}"
    try:
        before = rc.read_text() if rc.exists() else ""
        if line in before.splitlines():
            return f"{rc} reads it already"
        if _has_errors(shell, before + added) and not _has_errors(shell, before):
            return by_hand
        with rc.open("a") as file:  # not written anew: it may be a link, or have another owner
            file.write(added if before.endswith("\n") or not before else f"\n{added}")
    except (OSError, UnicodeDecodeError):
        return by_hand
    return f"added a line to {rc}"


def _has_errors(shell: str, text: str) -> bool:
    """Return whether a shell finds errors in a script, without running it."""
    if (program := shutil.which(shell)) is None:
        return False
    done = subprocess.run(
        [program, "-n"], input=text, capture_output=True, text=True, timeout=10, check=False
    )
    return done.returncode != 0
