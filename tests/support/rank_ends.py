"""Ends of ranks, with what they report."""

from hpcdist.runs.verdict import NO_REPORT, RankEnd


def rank_end(
    rank, *, exception=None, message="", traceback=None, lack=None, out_of_memory=False, **fields
):
    """Return the end of a rank on host `h`; its report is made of what is given of it."""
    given = (exception, message, traceback, lack, out_of_memory)
    if any(given):
        keys = ("exception", "text", "traceback", "lack", "out_of_memory")
        report = dict(zip(keys, given, strict=True)) | {"time_s": 1.0}
        fields["report"] = type(NO_REPORT)(**report)
    places = {"local_rank": rank, "node": 0, "host": "h", "time_s": 1.0}
    return RankEnd(rank=rank, **places | fields)
