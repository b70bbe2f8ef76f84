"""The page: nothing of a run is taken for markup, and nothing is loaded from anywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.report.page import to_html
from hpcdist.summary.report.report import make_report

EVIL = "<script>document.title='evil'</script>\"'><img src=x onerror=alert(1)>"
FAILED = Verdict(
    kind="exception",
    state="failed",
    message=f"rank 0 failed: {EVIL}",
    exit_code_of_run=1,
    log="logs/rank-00000.log",
)


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []
        self.texts = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def page_of(runs):
    report = make_report(summarize(runs, {}))
    return to_html(report)


def parsed(text):
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser


@pytest.fixture
def make_evil(make_run, events):
    def make(**options):
        run = make_run("bad-1", job=EVIL, gpus=2, verdict=FAILED, **options)
        for rank in range(2):
            start = events.start(rank, world_size=2, host=EVIL)
            note = {"event": "note", "time_s": 0.0, "message": EVIL}
            windows = events.steady([100.0] * 4)
            for window in windows:
                window["phases_s"] = {EVIL: 0.1}
            events.write(run, rank, [start, note, *windows, events.end()])
        return run

    return make


@pytest.fixture(scope="module")
def drawn():
    """The page of a hostile and a usual run, made once: drawing takes long."""
    return []


@pytest.fixture
def page(drawn, make_evil, make_run, events):
    if not drawn:
        other = make_run("ddp-1", gpus=2)
        for rank in range(2):
            start = events.start(rank, world_size=2)
            events.write(other, rank, [start, *events.steady([50.0] * 3)])
        drawn.append(page_of([make_evil(), other]))
    return drawn[0]


def test_what_comes_from_runs_is_text_and_the_only_script_is_our_own(page):
    elements = parsed(page)
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attrs in elements.found for name in attrs)
    assert any(EVIL in text for text in elements.texts)
    assert not any("\x1b" in text for text in elements.texts)


def test_the_page_names_nothing_to_load(page):
    elements = parsed(page)
    for tag, attrs in elements.found:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert "link" not in {tag for tag, _ in elements.found}
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_ids_are_unique_and_what_refers_to_them_finds_them(page):
    ids = [attrs["id"] for _, attrs in parsed(page).found if "id" in attrs]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert referred
    assert {a or b for a, b in referred} <= set(ids)


def test_a_page_without_runs_says_so_and_what_was_skipped(tmp_path, make_run):
    run = make_run("torn")
    run.spec_file.write_text("{")
    page = parsed(page_of([run]))
    assert "There is no run to summarize." in page.texts
    assert any("torn" in text and "skipped" in text for text in page.texts)


def test_a_run_that_goes_on_has_no_verdict_and_is_on_the_page(make_run, events):
    run = make_run("going", verdict=None)
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([200.0] * 3)])
    assert "ddp: no run is done (1 unknown)." in page_of([run])


def test_runs_that_did_not_end_well_are_counted_and_nothing_of_a_log_is_shown(make_run):
    run = make_run("one", verdict=FAILED)
    run.log_file(0).write_text("LoginError: no hunter22 for ann\n")
    page = page_of([run, make_run("two")])
    assert "1 of 2 did not end well" in page
    assert "logs/rank-00000.log" in page
    assert "hunter22" not in page
