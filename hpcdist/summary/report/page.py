"""The report as one page to send to others: a single file that loads nothing.

It is templates/report.html.j2, filled, with its style, script and pictures within. Whatever comes
from runs is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base.files import shipped_folder
from hpcdist.base.plotting import INK, Drawing
from hpcdist.base.text import shown
from hpcdist.base.version import __version__
from hpcdist.summary.report.report import Report, Section, Topic

_SCRIPT = "report.js"
_STYLE = "report.css"
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
    environment.filters["shown"] = shown
    script = (templates / _SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        sections=[
            _section(section, drawn.get(index, [])) for index, section in enumerate(report.sections)
        ],
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


def _section(section: Section, drawings: Sequence[Drawing]) -> dict[str, Any]:
    """Return what the template shows of a section, which is the last to see it."""
    topics = [
        {
            "name": topic.value,
            "drawings": [_inline(one) for one in drawings if one.picture.topic == topic.value],
            "tables": section.topics.get(topic, []),
        }
        for topic in Topic
    ]
    return {
        "section": section,
        "topics": [topic for topic in topics if topic["drawings"] or topic["tables"]],
        "num_failed": sum(
            row.run.verdict is not None and row.run.verdict.kind != "done" for row in section.rows
        ),
    }


def _inline(drawing: Drawing) -> Drawing:
    """Return the picture with an `svg` element that is as wide as there is room, and ids that no
    other has: they are those of the whole page."""
    head, _, rest = drawing.svg[drawing.svg.index("<svg") :].partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    svg = _ID.sub(rf"\g<1>{drawing.picture.name}-", f"{head}>{rest}")
    return drawing._replace(svg=svg.replace(INK, "currentColor"))
