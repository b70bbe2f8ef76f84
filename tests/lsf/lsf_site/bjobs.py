"""bjobs: what there is, in fields of one's own."""

import math
import re

from lsf_site import fields
from lsf_site.calls import Answer, split_options
from lsf_site.ends import find
from lsf_site.errors import RefusedError

_USAGE = "bjobs [-a] [-o fields] [jobId ...]"


def bjobs(call, batch):
    traits = batch.config.traits
    options, words = split_options(call.words, with_value=("o",), flags=("a",), usage=_USAGE)
    if words:
        found = {word: find(word, batch) for word in words}
    else:
        found = {"": [job for job in batch.jobs if "a" in options or not job.has_ended]}
    jobs = [job for some in found.values() for job in some]
    jobs.sort(key=lambda job: -job.end_s if job.has_ended else -math.inf)  # the last ends first
    missing = [word for word, some in found.items() if word and not some]
    names, delimiter = _read_format(options["o"], traits)
    code = batch.config.not_found_code if missing else 0
    rows = [
        ["-" if told[name] in (None, "") else str(told[name]) for name in names]
        for told in map(fields.values, jobs)
    ]
    if rows:
        rows.insert(0, [name.upper() for name in names])
    err = "".join(f"Job <{word}> is not found\n" for word in missing)
    if not jobs and not words:
        err, code = "No unfinished job found\n", traits.none_found_code
    return Answer(out="".join(f"{delimiter.join(row)}\n" for row in rows), err=err, code=code)


def _read_format(text, traits):
    delimiter = " "
    if found := re.search(r"delimiter=(['\"])(.*?)\1", text):
        delimiter = found[2]
        text = text.replace(found[0], "")
    names = [word.partition(":")[0].lower() for word in text.split()]
    for name in names:
        if name not in traits.bjobs_fields:
            raise RefusedError(f"<{name.upper()}> in the format string is not a valid field name")
    return names, delimiter
