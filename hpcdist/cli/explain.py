"""`hpcdist explain`: what a script, a key, an exit code, a verdict, a word or a run means."""

from __future__ import annotations

import difflib
import functools
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from hpcdist.base.errors import EXIT_CODES, NoSchedulerError, RunNotFoundError, UserError
from hpcdist.base.files import shipped_folder
from hpcdist.base.text import one_line
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import JOB_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import note, print_fact, print_json

_INDENT = "    "
_TERMS = "docs/terms/exit-codes.md"
_ALIKE = 0.75


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What one name means."""

    name: str
    kind: str
    """What it is: a key, a verdict, a word."""
    text: list[str]


class _ExplainCommand(JobCommand):
    """Goes to a host for jobs alone."""

    def invoke(self, ctx: click.Context) -> Any:
        is_job = _is_job(ctx.params["job_name"], ctx.params["is_module"], ctx.params["is_program"])
        return super().invoke(ctx) if is_job else click.Command.invoke(self, ctx)


@click.command(cls=_ExplainCommand)
@job_options(*JOB_OPTIONS, metavar="WHAT")
@json_option
def explain(*, options: JobOptions, as_json: bool) -> None:
    """Say what WHAT means: a job with the options of submit, a key, an exit code, a verdict, a
    word that hpcdist uses, or a run.

    \b
    hpcdist explain ddp --nodes 2 --gpus 2
        the script: what each line does, and the key or flag that it comes from
    hpcdist explain train.accumulate
        a key: its type, default and meaning, an example
    hpcdist explain 75
    hpcdist explain hang
        a verdict: what it means, and what helps
    hpcdist explain last
        the verdict of a run
    hpcdist explain exposed communication
    """
    if _is_job(options.job_name, options.is_module, options.is_program):
        lines = _explain_job(options)
        if as_json:
            print_json(lines)
            return
        for explained in lines:
            print(one_line(explained["line"]))
            if text := " ".join([explained["why"], *(f"[{key}]" for key in explained["keys"])]):
                print_fact(_INDENT, text)
        return
    word = " ".join([options.job_name, *options.script_args])
    found = _meanings(word) or [_of_run(word, options.runs)]
    if as_json:
        print_json(found)
        return
    for one in found:
        print(f"{one_line(one.name)}: {one.kind}")
        for text in one.text:
            bullet = "- " if text.startswith("- ") else ""
            print_fact(f"{_INDENT}{bullet}", text.removeprefix(bullet))


def _is_job(name: str, is_module: bool, is_program: bool) -> bool:
    """Return whether the name is a job's, as far as can be seen without reading it."""
    from hpcdist.job.files import named_jobs

    return os.path.isfile(name) or is_module or is_program or name in named_jobs()


@functools.cache
def meanings(name: str, column: str = "meaning") -> dict[str, str]:
    """Return the page's table of these two columns, by the first one: `state`, `kind` or `word`."""
    lines = (shipped_folder("docs/terms") / "exit-codes.md").read_text().splitlines()
    rows = lines[lines.index(f"| {name} | {column} |") + 2 :]
    table = itertools.takewhile(lambda line: line.startswith("|"), rows)
    return dict(row.strip("| ").split(" | ", 1) for row in table)


def advice(kind: str) -> list[str]:
    """Return what helps against a kind of verdict, the most usual first; RUN stands for the run."""
    return meanings("kind", "what helps")[kind].split("<br>")


def exit_code_in_words(code: int) -> str | None:
    """Return what an exit code of hpcdist or of a program means; None for a code that a program
    has chosen for itself."""
    names = {128 + number: number.name for number in signal.Signals}
    shell = f"the shell's code for a program that {names[code]} ended" if code in names else None
    return EXIT_CODES.get(code, shell)


def known_names() -> list[str]:
    """Return all names that can be explained, but those of jobs and runs."""
    from hpcdist.cluster.profile import ClusterProfile
    from hpcdist.job.keys import job_keys, keys_below

    keys = [key.path for key in (*job_keys(), *keys_below(ClusterProfile))]
    short = (key.rpartition(".")[2] for key in keys)
    terms = (meaning.name for meaning in _terms().values())
    return list(dict.fromkeys([*keys, *short, *map(str, EXIT_CODES), *terms]))


def _terms() -> dict[str, Meaning]:
    """Return the verdicts, states and words by what a user may type, in small letters."""
    terms = []
    verdicts, states = meanings("kind"), meanings("state")
    for name in verdicts | states:
        texts = [table[name] for table in (verdicts, states) if name in table]
        texts += [f"- {line}" for line in advice(name)] if name in verdicts else []
        kind = "a kind of verdict" if name in verdicts else "a state of runs"
        terms.append(Meaning(name=name, kind=kind, text=texts))
    for name, text in meanings("word").items():
        terms.append(Meaning(name=name, kind="a word of hpcdist", text=[text]))
    found = {term.name.lower(): term for term in terms}
    return found | {"oom": found["out_of_memory"]}


def _meanings(word: str) -> list[Meaning]:
    """Return what a name means that is neither a job's nor a run's."""
    found, terms, lower = _of_keys(word), _terms(), word.lower()
    if word.isdecimal() and len(word) < 4 and (text := exit_code_in_words(int(word))):
        found.append(Meaning(name=word, kind="an exit code", text=[text]))
    return found + [terms[name] for name in {lower, lower.replace("-", "_")} if name in terms]


def _of_keys(word: str) -> list[Meaning]:
    """Explain a key by its whole name, or by its last part; a section with the names of its
    keys."""
    from hpcdist.cluster.profile import ClusterProfile
    from hpcdist.job.keys import job_keys, keys_below

    keys = [*job_keys(), *keys_below(ClusterProfile)]
    whole = [key for key in keys if key.path == word]
    found = []
    for key in whole or [key for key in keys if key.path.endswith(f".{word}")]:
        is_section = key.value == "section"
        page = "docs/job-keys.md" if key.workloads else "docs/cluster-profiles.md"
        values = f"{key.value}, default: {key.default}"
        if is_section:
            inside = [each.path for each in keys if each.path.startswith(f"{key.path}.")]
            values = f"keys: {', '.join(dict.fromkeys(inside))}"
        values = f"{values}; see {page}"
        kind = f"a {'section' if is_section else 'key'} of "
        kind += "a job file" if key.workloads else "hpcdist.yaml"
        found.append(Meaning(name=key.path, kind=kind, text=[key.meaning, values]))
    return found


def _of_run(word: str, runs: Path) -> Meaning:
    """Explain the verdict of a run; of a sweep, that of its first run that failed. Raises UserError
    for a name that means nothing."""
    from hpcdist.job.files import named_jobs
    from hpcdist.monitor.states import OPEN_STATES, end_verdict, run_conditions
    from hpcdist.runs.run import find_runs, name_to_type

    try:
        found = find_runs(runs, word)
    except RunNotFoundError:
        names = [*named_jobs(), *known_names()]
        near = difflib.get_close_matches(word, names, n=1, cutoff=_ALIKE)
        listed = f"jobs are listed by hpcdist jobs, runs by hpcdist runs, words by {_TERMS}"
        raise UserError(
            f"{word!r} is not anything that can be explained",
            hint=f"did you mean {near[0]}? {listed}" if near else listed,
        ) from None
    conditions = run_conditions(found, warn=note)
    run = next((run for run in found if conditions[run.id].state == "failed"), found[-1])
    condition, verdict, damage = conditions[run.id], run.read_verdict(), run.describe_damage()
    if verdict is None and (damage or condition.state in OPEN_STATES):
        state = f"{condition.state}: {meanings('state')[condition.state]}"
        why = f"the run's {damage}" if damage else condition.reason
        return Meaning(name=run.id, kind="a run", text=[state, *filter(None, [why])])
    verdict = verdict or end_verdict(run, condition)
    helps = [f"- {line}".replace("RUN", name_to_type(run.path)) for line in advice(verdict.kind)]
    kind = f"{verdict.kind}: {meanings('kind')[verdict.kind]}"
    return Meaning(name=run.id, kind="a run", text=[verdict.message, kind, *helps])


def _explain_job(options: JobOptions) -> list[dict[str, Any]]:
    """Explain the lines of a job's script; of a sweep, of the script of its first run."""
    from hpcdist.cli.submit import plan, settle_afters
    from hpcdist.submission.plan import planned_scripts

    try:
        planned = plan(options)
    except NoSchedulerError as error:
        note(f"{error.message}: this is what --local does")
        planned = plan(replace(options, local=True, scheduler=None))
    dependencies = settle_afters(options, planned) if planned.scheduler.has_queue else []
    script, points = planned_scripts(planned, options.runs, dependencies)[0]
    if len(planned.plans) > 1:
        note(f"this is the script of the first run: {planned.points[points[0]].label}")
    return planned.plans[points[0]].explain(script, options.runs)
