"""What stands in two tables has one value, one name and one unit."""

import msgspec
from step_histories import Shape, make_history, write

from hpcdist.summary import summarize
from hpcdist.summary.report.report import make_report
from hpcdist.summary.values import UsageSummary


def test_no_two_tables_have_other_shares_of_one_name(make_run):
    run = make_run("run", gpus=2)
    shape = Shape(ranks_per_node=2, straggler=1, saves="in steps")
    write(make_history(shape, seed=3), run)
    (section,) = make_report(summarize([run], {})).sections
    shares = {}
    for table in section.tables:
        in_percent = "in %" in table.caption
        for column in table.columns:
            if column.header != "#" and (in_percent or column.unit == "%"):
                shares.setdefault(" ".join(column.header.split()), []).append(table.caption)
    assert [name for name, captions in shares.items() if len(captions) > 1] == []


def test_memory_has_one_unit(make_run):
    run = make_run("run")
    write(make_history(Shape(), seed=3), run)
    usage = UsageSummary(sampled_s=60.0, max_gpu_memory_bytes=2**30)
    summary = summarize([run], {})
    (found,) = summary.runs
    summary = msgspec.structs.replace(
        summary, runs=[msgspec.structs.replace(found, usage=usage, peak_rss_bytes=2**29)]
    )
    (section,) = make_report(summary).sections
    assert {column.unit for table in section.tables for column in table.columns} & {
        "GiB",
        "MiB",
    } == {"MiB"}
