"""The page as text: the template filled, its style and script within it."""

from __future__ import annotations

import base64
import hashlib
import time

from hpcdist.base.files import shipped_folder
from hpcdist.base.version import __version__
from hpcdist.summary.report.page.contents import LOG_LINES, page_parts
from hpcdist.summary.values import Summary

_SCRIPT = "report.js"
_STYLE = "report.css"


def to_html(summary: Summary) -> str:
    """One page that needs no other file and no network; its policy lets browsers load nothing."""
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
    script = (folder / _SCRIPT).read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        parts=page_parts(summary),
        num_runs=len(summary.runs),
        skipped=summary.skipped,
        log_lines=LOG_LINES,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        # Our own files, not to be escaped; and so is what matplotlib drew, which escapes texts.
        style=Markup((folder / _STYLE).read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=_hash(script),
        drawn=Markup,
    )


def _hash(script: str) -> str:
    """As a Content-Security-Policy names a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
