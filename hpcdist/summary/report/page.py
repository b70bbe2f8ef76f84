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
from typing import NamedTuple

from hpcdist.base.files import read_json, shipped_folder
from hpcdist.base.plotting import INK, Drawing, Picture
from hpcdist.base.secrets import Stars, starred_args
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import shown
from hpcdist.base.version import __version__
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.report.report import Report, Section
from hpcdist.summary.report.runs import Row
from hpcdist.summary.values import RunSummary

_SCRIPT = "report.js"
_STYLE = "report.css"
_LOG_LINES = 40
_LONGEST_LINE = 2_000
"""Characters: lines of progress bars can be long, and many runs may have failed."""

_ID = re.compile(r'(\bid="|href="#|url\(#)')


def to_html(report: Report, drawn: Mapping[int, Sequence[Drawing]]) -> str:
    """Return one page that needs no other file and no network; its policy lets browsers load
    nothing. `drawn` are the pictures, by the index of their section."""
    import jinja2
    from markupsafe import Markup

    folder = shipped_folder("templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["one_line"] = shown
    script = (folder / _SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    pictures = {
        index: [(drawing.picture, _inline(drawing)) for drawing in drawings]
        for index, drawings in drawn.items()
    }
    return environment.get_template("report.html.j2").render(
        sections=[
            PageSection(section, pictures.get(index, []), [_run(row) for row in section.rows])
            for index, section in enumerate(report.sections)
        ],
        num_runs=sum(len(section.rows) for section in report.sections),
        skipped=report.skipped,
        log_lines=_LOG_LINES,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        # Our own files, not to be escaped; and so is what matplotlib drew, which escapes texts.
        style=Markup((folder / _STYLE).read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=f"sha256-{digest}",  # names it in the Content-Security-Policy
        drawn=Markup,
    )


class PageRun(NamedTuple):
    """One run below the tables."""

    number: int
    id: str
    state: str
    is_failed: bool
    verdict: str
    """Sentence on a run that did not end well; else empty."""
    log_name: str
    log: str
    """The end of the log of the rank that failed first."""
    again: str | None


class PageSection(NamedTuple):
    """One section, as the template shows it."""

    section: Section
    pictures: list[tuple[Picture, str]]
    """Each with what was drawn of it."""
    runs: list[PageRun]


def _run(row: Row) -> PageRun:
    run = row.run
    is_failed = run.verdict is not None and run.verdict.kind != "done"
    spec = Run(Path(run.path)).read_spec() if run.path else None
    return PageRun(
        number=row.number,
        id=shown(run.run),
        state=run.state or "unknown",
        is_failed=is_failed,
        verdict=shown(run.verdict.message) if run.verdict and is_failed else "",
        log_name=shown(run.verdict.log or "") if run.verdict else "",
        log=_log(run) if is_failed else "",
        again=command_again(spec or RunSpec()),
    )


def _log(run: RunSummary) -> str:
    """Return the end of the log that the verdict names, if it is in the run's directory: one from
    elsewhere could name any file. The run's secrets are starred out, as the page is shown to
    others."""
    if run.path is None or run.verdict is None:
        return ""
    directory, stars = Run(Path(run.path)), Stars()
    file = directory.named_log(run.verdict.log)
    if file is None:
        return ""
    stars.value(read_json(directory.private_file))
    lines = []
    for line in map(stars.again, last_lines(file, _LOG_LINES)):
        left = len(line) - _LONGEST_LINE
        more = f" ... and {left:,} more characters" if left > 0 else ""
        lines.append(line[:_LONGEST_LINE] + more)
    return "\n".join(lines)


def _inline(drawing: Drawing) -> str:
    """Return an `svg` element that is as wide as there is room, with ids that no other has: they
    are those of the whole page."""
    head, _, rest = drawing.svg[drawing.svg.index("<svg") :].partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    name = drawing.picture.name
    return _ID.sub(rf"\g<1>{name}-", f"{head}>{rest}").replace(INK, "currentColor")


_JOB_FILES = (".yaml", ".yml")
_OPTIONS = {"module": "-m", "program": "--no-python"}
"""Option before the name of a module or program, by workload; source.job begins with it, too."""


def command_again(spec: RunSpec) -> str | None:
    """Return a line for the shell, with the folder to submit from; None where the run was
    submitted from Python, or its spec.json does not say enough.

    Values that look like secrets are starred out: the line is shown to others.
    """
    job, source = spec.job, spec.source
    workload, name = str(job.get("workload")), source.job
    if name is None or workload == "function":
        return None
    is_job_file = name.endswith(_JOB_FILES)
    words = ["hpcdist", "submit", name]
    if not is_job_file and workload in _OPTIONS:
        option = _OPTIONS[workload]
        words[2:] = [option, name.removeprefix(f"{option} ")]
    if spec.scheduler == LOCAL:  # a profile would be refused beside it
        words.append("--local")
    else:
        words += [] if spec.scheduler is None else ["--scheduler", spec.scheduler]
        words += [] if spec.cluster.name is None else ["--cluster", spec.cluster.name]
    given = job.get("args")
    args = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    starred = starred_args(args)
    as_override = f"args={json.dumps(starred, ensure_ascii=False)}"
    keys = []
    for text in source.overrides:
        key, _, value = text.partition("=")
        is_changed = key == "args" and starred != args
        words += ["--set", as_override if is_changed else f"{key}={Stars().value(value, key)}"]
        keys.append(key)
    if args and "args" not in keys:
        words += ["--set", as_override] if is_job_file else ["--", *starred]
    line = shlex.join(words)
    return line if spec.cwd is None else f"cd {shlex.quote(spec.cwd)} && {line}"
