"""Show links to files outside of docs/ as their paths, which the site does not have, and warn where no file is there.

mkdocs.yml names this module under `hooks`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parent.parent
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
_log = logging.getLogger("mkdocs.links")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return a page whose links out of docs/ are text."""
    folder = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return link[0]
        if not target.exists():
            _log.warning("%s links to %s, which is not there", page.file.src_uri, link[2])
        return f"`{target.relative_to(REPOSITORY)}`"

    return _LINK.sub(replaced, markdown)
