"""`hpcdist explain`: what a script, a run, a key, an exit code, a verdict or a word means."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hpcdist.base.errors import NoSchedulerError, RunNotFoundError, UserError
from hpcdist.base.text import nearest, one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import Choice, JobOptions, job_options, json_option
from hpcdist.cli.printing import note, paged, print_json, print_wrapped

if TYPE_CHECKING:
    from hpcdist.job.keys import DottedKey
    from hpcdist.submission.explained import ExplainedLines
    from hpcdist.submission.plan import PlannedSubmission

KINDS = {
    "job": "a job",
    "run": "a run",
    "key": "a key of a job file or of hpcdist.yaml",
    "code": "an exit code",
    "verdict": "a kind of verdict, or a state of runs",
    "word": "a word of hpcdist, or of its summary",
}
"""Kind of what can be explained -> in words; the first that a name fits counts."""
_INDENT = "    "


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on one name."""

    kind: str
    name: str
    title: str
    """What it is, in a word or two."""
    text: list[str]
    facts: dict[str, str] = {}
    see: str = ""
    """The page with more."""


class _ExplainCommand(HostCommand):
    """Goes to a host for jobs alone."""

    def invoke(self, ctx: click.Context) -> Any:
        if _kind_of(ctx.params) == "job":
            return super().invoke(ctx)
        return click.Command.invoke(self, ctx)


@click.command(cls=_ExplainCommand)
@job_options(metavar="WHAT")
@click.option("--as", "kind", type=Choice(list(KINDS)), help="Take WHAT for this.")
@json_option
@paged
def explain(*, options: JobOptions, kind: str | None, as_json: bool) -> None:
    """Say what WHAT means: a job with the options of submit, a run, a key, an exit code, a verdict,
    or a word that hpcdist uses.

    \b
    hpcdist explain ddp --nodes 2 --gpus 2
        the script: what each line does, and the key or flag that it comes from
    hpcdist explain train.accumulate
        a key: its type, default and meaning, the jobs that have it, an example
    hpcdist explain 75
    hpcdist explain hang
        a verdict: what it means, and what helps
    hpcdist explain last
        the verdict of a run
    hpcdist explain exposed communication

    A name that may mean several things is taken for a job, a run, a key, an exit code, a verdict
    and a word, in this order; --as takes it for another.
    """
    word = " ".join([options.job_name, *options.script_args])
    if _kind_of({"job_name": options.job_name, "kind": kind, **_given(options)}) == "job":
        _explain_job(options, as_json=as_json)
        return
    found = _find(word, options.runs, [kind] if kind else [*KINDS][1:])
    if as_json:
        print_json(msgspec.to_builtins(found[0]))
        return
    for other in found[1:]:
        note(f"{one_line(word)} is also {other.title}: hpcdist explain {word} --as {other.kind}")
    _print(found[0])


def _given(options: JobOptions) -> dict[str, Any]:
    return {"is_module": options.is_module, "is_program": options.is_program}


def _kind_of(params: dict[str, Any]) -> str | None:
    """Return `job` where the name is one, as far as can be seen without reading it."""
    from hpcdist.job.files import named_jobs

    name = params["job_name"]
    if params.get("kind") is not None:
        return str(params["kind"])
    is_path = os.path.isfile(name) or os.path.isfile(os.path.join(name, "__main__.py"))
    is_code = params.get("is_module") or params.get("is_program")
    return "job" if is_path or is_code or name in named_jobs() else None


# A name that is no job's.


def _find(word: str, runs: Path, kinds: list[str]) -> list[Explanation]:
    """Return what a name may mean, in the order of the kinds; UserError where it means nothing."""
    found = []
    for kind in kinds:
        if kind == "run":
            one = _of_run(word, runs)
        else:
            one = _of_key(word) if kind == "key" else _of_word(kind, word)
        found += [] if one is None else [one]
    if found:
        return found
    known = known_names()
    names = {name: kind for kind in kinds for name in known.get(kind, ())}
    if len(kinds) > 1:
        names |= dict.fromkeys(known["job"], "job")
    near = nearest(word, names)
    listed = (
        "jobs are listed by hpcdist jobs, runs by hpcdist runs, keys by docs/job-keys.md, verdicts "
        "by docs/terms/exit-codes.md, words by hpcdist summary --explain"
    )
    what = KINDS[kinds[0]] if len(kinds) == 1 else "anything that can be explained"
    raise UserError(
        f"{word!r} is not {what}",
        hint=f"did you mean {near}, {KINDS[names[near]]}? {listed}" if near else listed,
    )


def known_names() -> dict[str, list[str]]:
    """Return all names that can be explained, by kind, but those of runs."""
    from hpcdist.base.errors import EXIT_CODES
    from hpcdist.job.files import named_jobs
    from hpcdist.runs.meanings import meanings
    from hpcdist.summary.report.words import WORDS, names_of

    keys = [key.path for key in _all_keys()]
    words = [*meanings("word"), *(name for word in WORDS for name in names_of(word))]
    return {
        "job": [*named_jobs()],
        "key": [*keys, *(key.rpartition(".")[2] for key in keys)],
        "code": [str(code) for code in EXIT_CODES],
        "verdict": [*meanings("kind"), *meanings("state")],
        "word": words,
    }


def _of_word(kind: str, word: str) -> Explanation | None:
    """Explain an exit code, a verdict or a state, or a word, by the text that its page has, too."""
    from hpcdist.runs.meanings import advice, exit_code_in_words, meanings
    from hpcdist.summary.report.words import WORDS, names_of

    verdicts, states, terms = meanings("kind"), meanings("state"), meanings("word")
    title, texts, see = "a word of hpcdist", [], "docs/terms/exit-codes.md"
    if kind == "code" and word.isdecimal() and len(word) < 4:
        title, texts = "an exit code", [exit_code_in_words(int(word))]
    elif kind == "verdict" and word in verdicts:
        title = "a kind of verdict"
        texts = [verdicts[word], states.get(word), *_advice(advice(word))]
        see = "docs/hangs.md" if word == "hang" else see
    elif kind == "verdict":
        title, texts = "a state of runs", [states.get(word)]
    elif kind == "word" and (term := terms.get(word.lower())):
        word, texts, see = word.lower(), [term], ""
    elif kind == "word":
        whole = [one for one in WORDS if word.lower() in map(str.lower, names_of(one))]
        texts = [WORDS[one] for one in whole]
        title, see, word = "a word of the summary", "docs/figures.md", (*whole, word)[0]
    text = list(dict.fromkeys(filter(None, texts)))
    return Explanation(kind=kind, name=word, title=title, text=text, see=see) if text else None


def _advice(lines: list[str], run: str = "RUN") -> list[str]:
    return [f"- {line}".replace("RUN", run) for line in lines]


def _of_run(word: str, runs: Path) -> Explanation | None:
    """Explain the verdict of a run; of a sweep, that of its first run that failed."""
    from hpcdist.monitor.states import OPEN_STATES, continuation, end_verdict, run_conditions
    from hpcdist.runs.meanings import advice, exit_code_in_words, meanings
    from hpcdist.runs.run import name_to_type
    from hpcdist.runs.sweep import find_runs

    try:
        found = find_runs(runs, word)
    except RunNotFoundError:
        return None
    conditions = run_conditions(found, warn=note)
    run = next((run for run in found if conditions[run.id].state == "failed"), found[-1])
    condition = conditions[run.id]
    verdict = run.read_verdict()
    if verdict is None and condition.state not in OPEN_STATES:
        verdict = end_verdict(run, condition)
    facts = {"state": f"{condition.state}: {meanings('state')[condition.state]}"}
    if verdict is None:
        facts |= {"reason": condition.reason} if condition.reason else {}
        text = []
    else:
        code = verdict.exit_code_of_run
        facts["verdict"] = f"{verdict.kind}: {meanings('kind')[verdict.kind]}"
        facts["exit code"] = f"{code}: {exit_code_in_words(code) or 'of the program'}"
        if verdict.log is not None:
            facts["log"] = str(run.path / verdict.log)
        if command := continuation(run, verdict):
            facts["go on with"] = command
        text = [verdict.message, *_advice(advice(verdict.kind), name_to_type(run.path))]
    return Explanation(kind="run", name=run.id, title="a run", text=text, facts=facts)


# Keys.


def _all_keys() -> list[DottedKey]:
    from hpcdist.cluster.profile import profile_keys
    from hpcdist.job.keys import job_keys

    return [*job_keys(), *profile_keys()]


def _of_key(word: str) -> Explanation | None:
    """Explain a key by its whole name, or by its last part; a section with the names of its
    keys."""
    from hpcdist.job.check import annotation_at
    from hpcdist.job.files import named_jobs
    from hpcdist.job.keys import example_of
    from hpcdist.job.spec import JOB_TYPES

    keys = _all_keys()
    found = [key for key in keys if key.path == word]
    found += [key for key in keys if key.path.endswith(f".{word}")]
    if not found:
        return None
    same = [key for key in found if key.path == found[0].path]
    others = list(dict.fromkeys(key.path for key in found if key.path != found[0].path))
    first = same[0]
    is_of_job = bool(first.workloads)
    facts: dict[str, str] = {}
    text = [first.meaning] if len(same) == 1 else []
    for key in same:
        whose = "" if len(same) == 1 else f" ({' and '.join(key.workloads)})"
        text += [f"{key.meaning}{whose}"] if whose else []
        facts |= {f"value{whose}": key.value, f"default{whose}": key.default or "see its keys"}
    if first.value == "section":
        inside = [key.path for key in keys if key.path.startswith(f"{first.path}.")]
        facts = {"keys": ", ".join(dict.fromkeys(inside))}
    if first.unit:
        facts["unit"] = first.unit
    if is_of_job:
        workloads = sorted({name for key in same for name in key.workloads})
        facts["workloads"] = ", ".join(workloads)
        annotation = annotation_at(JOB_TYPES[workloads[0]], tuple(first.path.split(".")))
        if (example := example_of(first.path, annotation)) is not None:
            jobs = ["ddp"] if "train" in workloads else [*named_jobs().keys() & set(workloads)]
            name = min(jobs, default="train.py")  # a benchmark is called after its workload
            facts["example"] = f"hpcdist submit {name} --set {first.path}={example}"
    if others:
        facts["also"] = ", ".join(others)
    return Explanation(
        kind="key",
        name=first.path,
        title=("a section" if first.value == "section" else "a key")
        + (" of a job file" if is_of_job else " of hpcdist.yaml"),
        text=text,
        facts=facts,
        see="docs/job-keys.md" if is_of_job else "docs/cluster-profiles.md",
    )


# A job.


def _explain_job(options: JobOptions, *, as_json: bool) -> None:
    """Explain the scripts of a job, once for runs whose scripts are alike."""
    from hpcdist.cli.submit import plan, settle_afters
    from hpcdist.submission.explained import explain_script
    from hpcdist.submission.layout import scripts_by_point

    try:
        planned = plan(options)
    except NoSchedulerError as error:
        note(f"{error.message}: this is what --local does")
        planned = plan(replace(options, local=True, scheduler=None))
    dependencies = settle_afters(options, planned) if planned.has_queue else []
    scripts = scripts_by_point(planned, options.runs, dependencies)
    described = []
    for same in _alike(planned):
        run = planned.runs[same[0]]
        labels = list(dict.fromkeys(planned.points[index].label for index in same))
        lines = explain_script(run, scripts[same[0]])
        numbers = run.explain(options.runs)
        described.append({"runs": labels, "lines": lines, "numbers": numbers})
        if not as_json:
            if len(described) > 1:
                print()
            if planned.is_sweep:
                print_wrapped(f"{len(same)} of {len(planned.runs)} runs: {', '.join(labels)}")
            _print_script(lines, numbers)
    if as_json:
        print_json(msgspec.to_builtins(described))


def _alike(planned: PlannedSubmission) -> list[list[int]]:
    """Return the points by what their scripts ask for."""
    from hpcdist.submission.plan import shape_of

    points: dict[str, list[int]] = {}
    for index, run in enumerate(planned.runs):
        job = run.loaded.job
        key = f"{planned.points[index].cluster} {shape_of(job)} {job.container}"
        points.setdefault(key, []).append(index)
    return list(points.values())


def _print_script(lines: Iterable[ExplainedLines], numbers: list[str]) -> None:
    from hpcdist.submission.explained import shown_origins

    for explained in lines:
        for line in explained.lines:
            print(one_line(line))
        print_wrapped(one_line(explained.what), first=_INDENT, indent=len(_INDENT))
        if origins := "; ".join(shown_origins(explained.origins)):
            print_wrapped(f"from {one_line(origins)}", first=_INDENT, indent=len(_INDENT) + 5)
    if numbers:
        print("\nIts numbers:")
    for number in numbers:
        print_wrapped(one_line(number), first=_INDENT, indent=len(_INDENT))


def _print(found: Explanation) -> None:
    print(f"{one_line(found.name)}: {found.title}")
    for text in found.text:
        indent = len(_INDENT) + (2 if text.startswith("- ") else 0)
        print_wrapped(one_line(text), first=_INDENT, indent=indent)
    facts = found.facts | ({"see": found.see} if found.see else {})
    width = max(map(len, facts), default=0) + 2
    for name, value in facts.items():
        first = f"{_INDENT}{name.ljust(width)}"
        print_wrapped(one_line(value), first=first, indent=len(first))
    sys.stdout.flush()
