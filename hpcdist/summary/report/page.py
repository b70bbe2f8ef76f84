"""The report as one page to send to others: a single file that loads nothing.

It is templates/report.html.j2, filled, with its style, script and pictures within. Whatever comes
from runs is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdist.base.files import shipped_folder
from hpcdist.base.plotting import INK, Drawing
from hpcdist.base.secrets import Stars
from hpcdist.base.table import Table
from hpcdist.base.text import harmless, shown
from hpcdist.base.version import __version__
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.report.report import Report, Section, Topic
from hpcdist.summary.report.runs import NUMBER, Row
from hpcdist.summary.values import RunSummary

if TYPE_CHECKING:
    from markupsafe import Markup

_SCRIPT = "report.js"
_STYLE = "report.css"
_MOST_TRACEBACK = 10_000
"""Characters of a traceback, from its end, that are shown."""
_MOST_FAILURES = 6
"""Failed runs that stand above all."""
_MOST_OPEN = 3
"""Failed runs of a job whose tracebacks are unfolded."""

_OPTION = re.compile(r"--[a-z][a-z-]*")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def to_html(report: Report, drawn: Mapping[int, Sequence[Drawing]]) -> str:
    """Return one page that needs no other file and no network; its policy lets browsers load
    nothing. `drawn` are the pictures, by the index of their section."""
    import jinja2
    from markupsafe import Markup

    templates = shipped_folder("templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"whole_options": _whole_options, "shown": shown}
    script = (templates / _SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [
        _section(section, drawn.get(index, [])) for index, section in enumerate(report.sections)
    ]
    failed = [run for item in sections for run in item["runs"] if run["is_failed"]]
    return environment.get_template("report.html.j2").render(
        sections=sections,
        failures=failed[:_MOST_FAILURES],
        num_failed=len(failed),
        num_runs=sum(len(section.rows) for section in report.sections),
        skipped=report.skipped,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        # Our own files, not to be escaped; and so is what matplotlib drew, which escapes texts.
        style=Markup((templates / _STYLE).read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=f"sha256-{digest}",  # names it in the Content-Security-Policy
        drawn=Markup,
    )


def _whole_options(text: str) -> Markup:
    """Escape a text, and keep a line from ending within an option's name, after its hyphens."""
    from markupsafe import Markup, escape

    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))  # noqa: S704 - escaped


# What the template reads is made here, as dicts: it is the last to see them.


def _section(section: Section, drawings: Sequence[Drawing]) -> dict[str, Any]:
    leading = section.leading
    rows = sorted(section.rows, key=lambda row: not _is_failed(row.run))
    failed = [row for row in rows if _is_failed(row.run)]
    # The picture that carries the answer, and the table that it rests on: what the benchmark
    # measured in the run that leads, else the speed.
    of_leading = [each for each in drawings if leading and leading.run in each.picture.runs]
    key = next(iter([*of_leading, *drawings]), None)
    begin = next((f"#{row.number}:" for row in rows if row.run is leading), "#")
    measured = section.topics.get(Topic.MEASURED, [])
    of_benchmark = [each for each in measured if each.caption.startswith(begin)]
    main = next(iter([*of_benchmark, *section.tables]), None)
    topics = [
        {
            "name": topic.value,
            "is_open": topic is Topic.TIME,  # it is the answer to "why"
            "drawings": [
                _inline(each)
                for each in drawings
                if each is not key and each.picture.topic == topic.value
            ],
            "tables": [_table(each, section.name) for each in tables if each is not main],
        }
        for topic, tables in section.topics.items()
    ]
    are_all_failed = all(row.run.state == "failed" for row in failed)
    return {
        "section": section,
        "key": key and _inline(key),
        "table": main and _table(main, section.name),
        "topics": [topic for topic in topics if topic["drawings"] or topic["tables"]],
        "runs": [
            _run(row, is_open=row in failed[:_MOST_OPEN]) for row in rows
        ],  # failed ones first
        "num_failed": len(failed),
        "how_failed": "failed" if are_all_failed else "did not end well",
    }


def _table(table: Table[Any], name: str) -> dict[str, Any]:
    """Return a table with the numbers of the runs of each row, and how many columns stay where the
    others are scrolled."""
    first = table.columns[0]
    has_numbers = first.header == NUMBER
    values = [first.value(row) if has_numbers else [] for row in table.rows]
    runs = [value if isinstance(value, list) else [value] for value in values]
    has_ids = has_numbers and len(table.columns) > 1 and table.columns[1].align == "left"
    return {
        "table": table,
        "label": table.caption or f"Table of {shown(name)}",
        "rows": [*zip(table.cells(), runs, strict=True)],
        "num_staying": 2 if has_ids else 1,
    }


def _is_failed(run: RunSummary) -> bool:
    return run.verdict is not None and run.verdict.kind != "done"


def _run(row: Row, *, is_open: bool) -> dict[str, Any]:
    """Return a run with the verdict's traceback, in which secrets have stars: the page is shown to
    others, and a log has what the program printed."""
    run, is_failed = row.run, _is_failed(row.run)
    directory = Run(Path(run.path)) if run.path else None
    verdict = directory.read_verdict() if directory and is_failed else None
    traceback = (verdict and verdict.first and verdict.first.report.traceback) or ""
    return {
        "number": row.number,
        "run": run,
        "is_failed": is_failed,
        "is_open": is_open,
        "traceback": harmless(traceback[-_MOST_TRACEBACK:]),
        "again": command_again((directory.read_spec() if directory else None) or RunSpec()),
    }


def _inline(drawing: Drawing) -> Drawing:
    """Return the picture with an `svg` element that is as wide as there is room, and ids that no
    other has: they are those of the whole page."""
    head, _, rest = drawing.svg[drawing.svg.index("<svg") :].partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    svg = _ID.sub(rf"\g<1>{drawing.picture.name}-", f"{head}>{rest}")
    return drawing._replace(svg=svg.replace(INK, "currentColor"))


_JOB_FILES = (".yaml", ".yml")
_OPTIONS = {"module": "-m", "program": "--no-python"}
"""Option before the name of a module or program, by workload; job_source begins with it, too."""


def command_again(spec: RunSpec) -> str | None:
    """Return a line for the shell, with the folder to submit from; None where the run was
    submitted from Python, or its spec.json does not say enough.

    Values that look like secrets are starred out: the line is shown to others.
    """
    job, name = spec.job, spec.job_source
    workload = str(job.get("workload"))
    if name is None or workload == "function":
        return None
    is_job_file = name.endswith(_JOB_FILES)
    option = None if is_job_file else _OPTIONS.get(workload)
    words = [
        "hpcdist",
        "submit",
        *([option, name.removeprefix(f"{option} ")] if option else [name]),
    ]
    if spec.scheduler == LOCAL:  # a profile would be refused beside it
        words.append("--local")
    else:
        words += [] if spec.scheduler is None else ["--scheduler", spec.scheduler]
        words += [] if spec.cluster.name is None else ["--cluster", spec.cluster.name]
    own_args = job.get("args")
    own_args = own_args if isinstance(own_args, list) else []
    given = [text for text in own_args if isinstance(text, str)]
    args = Stars().args(given)
    is_given = False
    for text in spec.overrides:
        key, _, value = text.partition("=")
        is_given = is_given or key == "args"
        is_starred = key == "args" and args != given
        own = json.dumps(args, ensure_ascii=False) if is_starred else Stars().value(value, key)
        words += ["--set", f"{key}={own}"]
    if args and not is_given:
        as_override = ["--set", f"args={json.dumps(args, ensure_ascii=False)}"]
        words += as_override if is_job_file else ["--", *args]
    line = shlex.join(words)
    return line if spec.cwd is None else f"cd {shlex.quote(spec.cwd)} && {line}"
