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
from typing import Any

from hpcdist.base.files import shipped_folder
from hpcdist.base.plotting import INK, Picture, render
from hpcdist.base.progress import track
from hpcdist.base.text import shown
from hpcdist.base.version import __version__
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import Report, Section, Topic

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
    environment.filters["shown"] = shown
    script = (templates / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = defaultdict(list)
    for index, picture in track(list(find_pictures(report.sections)), "drawing"):
        drawn[index].append(_inline(picture))
    return environment.get_template("report.html.j2").render(
        sections=[_section(one, drawn[index]) for index, one in enumerate(report.sections)],
        num_runs=sum(len(section.rows) for section in report.sections),
        skipped=report.skipped,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        # Our own files, not to be escaped; and so is what matplotlib drew, which escapes texts.
        style=Markup((templates / "report.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=f"sha256-{digest}",  # names it in the Content-Security-Policy
        drawn=Markup,
    )


def _section(section: Section, drawings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the template shows of a section, which is the last to see it."""
    topics = [
        {
            "name": topic.value,
            "drawings": [one for one in drawings if one["picture"].topic == topic.value],
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


def _inline(picture: Picture) -> dict[str, Any]:
    """Return the picture with an `svg` element that is as wide as there is room, and ids that no
    other has: they are those of the whole page."""
    drawn = render(picture, "svg").decode()
    head, _, rest = drawn[drawn.index("<svg") :].partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    svg = _ID.sub(rf"\g<1>{picture.name}-", f"{head}>{rest}")
    return {"picture": picture, "svg": svg.replace(INK, "currentColor")}
