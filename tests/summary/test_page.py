"""The page: nothing of a run is taken for markup, and nothing is loaded from anywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hpcdist.summary import summarize
from hpcdist.summary.report.page import to_html
from hpcdist.summary.report.report import make_report


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.texts = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_what_comes_from_runs_is_text_and_the_only_script_is_our_own(page):
    elements = Elements(page.read_text())
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attrs in elements.found for name in attrs)
    assert sum("onerror" in text for text in elements.texts) > 3


def test_the_page_names_nothing_to_load_and_ids_are_unique(page):
    page = page.read_text()
    elements = Elements(page)
    for tag, attrs in elements.found:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert "link" not in {tag for tag, _ in elements.found}
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert {a or b for a, b in referred} <= set(ids)


def test_what_goes_on_failed_or_was_skipped_is_said_and_nothing_of_a_log_is_shown(page):
    page = page.read_text()
    assert "1 of 1 did not end well" in page
    assert "logs/rank-00000.log" in page
    assert "hunter22" not in page
    assert "m: no run is done (1 unknown)." in page
    assert any("torn" in text and "skipped" in text for text in Elements(page).texts)
    assert "There is no run to summarize." in to_html(make_report(summarize([], {})))
