"""Kinds of events: files that hold one the summary does not know are read slowly."""

import re
from pathlib import Path

from hpcdist.summary.read.event_file import EVENT_TYPES, OTHER_KINDS

EVENTS_PAGE = Path(__file__).parent.parent.parent / "docs" / "events.md"


def test_the_summary_knows_the_kinds_that_are_documented():
    documented = re.findall(r"^\| `(\w+)` \|", EVENTS_PAGE.read_text(), flags=re.MULTILINE)

    assert documented
    assert {*documented} == {*EVENT_TYPES, *OTHER_KINDS}
