"""Says what differs between what torchrun and hpcdist left of the same program."""

import fnmatch
import gzip
import json
import re
from collections import Counter

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def differences(row, torchrun, hpcdist):
    """Sentences, each of which begins with what differs; none where both are equal."""
    found = []
    if torchrun.exit_code != hpcdist.exit_code:
        found.append(f"exit code: torchrun {torchrun.exit_code}, hpcdist {hpcdist.exit_code}")
    found += _of_files(row, torchrun, hpcdist)
    if "output" in row.compares:
        found += _of_output(torchrun, hpcdist)
    return found


def _of_files(row, torchrun, hpcdist):
    theirs, ours = (_files(row, outcome) for outcome in (torchrun, hpcdist))
    for name in sorted(theirs.keys() ^ ours.keys()):
        yield f"file {name}: only {'torchrun' if name in theirs else 'hpcdist'}'s run wrote it"
    yield from _of_random(ours)
    for name in sorted(theirs.keys() & ours.keys()):
        if not name.startswith("random-"):
            yield from _of_file(row, name, theirs[name], ours[name])


def _files(row, outcome):
    """Path by name of the files that a run wrote."""
    found = {}
    for path in sorted(outcome.folder.rglob("*")):
        name = str(path.relative_to(outcome.folder))
        is_ignored = "__pycache__" in name or _matches(name, row.ignores)
        if path.is_file() and not is_ignored and name not in outcome.given:
            found[name] = path
    return found


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _of_random(files):
    """What ranks drew without a seed: each must have drawn something else."""
    paths = [path for name, path in files.items() if name.startswith("random-")]
    drawn = [json.loads(path.read_text()) for path in paths]
    for name in drawn[0] if drawn else ():
        values = [json.dumps(one[name]) for one in drawn]
        if len(set(values)) < len(values):
            yield f"random numbers of {name}: the same on several ranks"


def _of_file(row, name, theirs, ours):
    if not fnmatch.fnmatch(name, "facts-*.json"):
        values = [path.read_bytes() for path in (theirs, ours)]
        if name.endswith(".gz"):
            values = map(gzip.decompress, values)  # its header has the time
        one, other = values
        if one != other:
            yield f"file {name}: torchrun {_cut(one)}, hpcdist {_cut(other)}"
        return
    flat = []
    for path in (theirs, ours):
        folder = str(path).removesuffix(f"/{name}")
        flat.append(dict(flatten(json.loads(path.read_text().replace(folder, "FOLDER")))))
    for key in sorted(flat[0].keys() | flat[1].keys()):
        one, other = (each.get(key, "(missing)") for each in flat)
        if one != other and not _matches(key, row.differs):
            yield f"{name}, {key}: torchrun {_cut(one)}, hpcdist {_cut(other)}"


def flatten(value, prefix=""):
    """Pairs of a dotted name and a value, of objects within objects."""
    if not isinstance(value, dict) or not value:
        yield prefix, value
        return
    for key, inner in value.items():
        yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))


def _of_output(torchrun, hpcdist):
    for rank, (theirs, ours) in enumerate(zip(torchrun.output, hpcdist.output, strict=True)):
        one, other = (
            Counter(_ADDRESS.sub("0x", text.replace(str(outcome.folder), "FOLDER")).splitlines())
            for text, outcome in ((theirs, torchrun), (ours, hpcdist))
        )
        if one != other:
            only = [sorted((a - b).elements()) for a, b in ((one, other), (other, one))]
            yield f"output of rank {rank}: only under torchrun {only[0]}, under hpcdist {only[1]}"


def _cut(value):
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}... ({len(text)} letters)"
