"""The summary as CSV, for spreadsheets and data frames: a line per run.

Columns are called as the keys of the JSON, with dots between keys within keys: so units stand in
the headers, and numbers are not rounded. Lists have no column, nor has what no run has.
"""

from __future__ import annotations

import operator

from hpcdist.base import table
from hpcdist.base.table import Column, Table
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.values import Summary, to_json


def to_csv(summary: Summary) -> str:
    """Return a header and one line per run, in order; unknown values are empty."""
    rows = [
        {
            name: value
            for name, value in flatten(run).items()
            if value is not None and not isinstance(value, (list, dict))
        }
        for run in to_json(summary)
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [Column(name, operator.methodcaller("get", name)) for name in names]
    return table.to_csv(Table("", columns, rows))
