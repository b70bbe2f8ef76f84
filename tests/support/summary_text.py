"""What the summary says of runs."""

import io

from hpcdist.summary import print_summary, summarize
from hpcdist.summary.report.report import make_report
from hpcdist.summary.report.text import make_console
from hpcdist.summary.values import Summary


def printed(runs, **options):
    """What the terminal shows of runs, or of their summary."""
    file = io.StringIO()
    summary = runs if isinstance(runs, Summary) else summarize(runs, {}, **options)
    print_summary(summary, make_console(file))
    return file.getvalue()


def in_words(runs, **options):
    """The same in one line."""
    return " ".join(printed(runs, **options).split())


def only_section(summary):
    """The report on the only job, or comparison."""
    (section,) = make_report(summary).sections
    return section
