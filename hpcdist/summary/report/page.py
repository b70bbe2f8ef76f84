"""The report as one page to send to others: a single file that loads nothing.

It is templates/report.html.j2, filled, with its style, script and pictures within. Whatever comes
from runs is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdist.base.files import shipped_folder
from hpcdist.base.plotting import INK, Picture, render
from hpcdist.base.progress import track
from hpcdist.base.text import harmless, shown
from hpcdist.base.version import __version__
from hpcdist.runs.run import Run
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import Report, Section, Topic
from hpcdist.summary.report.runs import Row

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
_ANSWERS = (Topic.SPEED, Topic.MEASURED, Topic.TIME)
"""Topics that are unfolded."""

_OPTION = re.compile(r"--[a-z][a-z-]*")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def to_html(report: Report) -> str:
    """Return one page that needs no other file and no network; its policy lets browsers load
    nothing."""
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
    drawn = defaultdict(list)
    for index, picture in track(list(find_pictures(report.sections)), "drawing"):
        drawn[index].append(_inline(picture))
    sections = [_section(section, drawn[index]) for index, section in enumerate(report.sections)]
    failed = [run for item in sections for run in item["failed"]]
    return environment.get_template("report.html.j2").render(
        sections=sections,
        failures=failed[:_MOST_FAILURES],
        num_failed=len(failed),
        most_open=_MOST_OPEN,
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


def _section(section: Section, drawings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    topics = [
        {
            "name": topic.value,
            "is_open": topic in _ANSWERS,
            "drawings": [one for one in drawings if one["picture"].topic == topic.value],
            "tables": section.topics.get(topic, []),
        }
        for topic in Topic
    ]
    verdicts = [(row, row.run.verdict) for row in section.rows]
    failed = [row for row, verdict in verdicts if verdict is not None and verdict.kind != "done"]
    are_all_failed = all(row.run.state == "failed" for row in failed)
    return {
        "section": section,
        "topics": [topic for topic in topics if topic["drawings"] or topic["tables"]],
        "failed": [_failed(row) for row in failed],
        "how_failed": "failed" if are_all_failed else "did not end well",
    }


def _failed(row: Row) -> dict[str, Any]:
    """Return a run with the verdict's traceback, in which secrets have stars: the page is shown to
    others, and a log has what the program printed."""
    verdict = Run(Path(row.run.path)).read_verdict() if row.run.path else None
    traceback = (verdict and verdict.first and verdict.first.report.traceback) or ""
    return {
        "number": row.number,
        "run": row.run,
        "traceback": harmless(traceback[-_MOST_TRACEBACK:]),
    }


def _inline(picture: Picture) -> dict[str, Any]:
    """Return the picture with an `svg` element that is as wide as there is room, and ids that no
    other has: they are those of the whole page."""
    drawn = render(picture, "svg").decode()
    head, _, rest = drawn[drawn.index("<svg") :].partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    svg = _ID.sub(rf"\g<1>{picture.name}-", f"{head}>{rest}")
    return {"picture": picture, "svg": svg.replace(INK, "currentColor")}
