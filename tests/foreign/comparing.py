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
    if torchrun.exit_code != hpcdist.exit_code and not row.exit_code_differs:
        found.append(f"exit code: torchrun {torchrun.exit_code}, hpcdist {hpcdist.exit_code}")
    found += _of_files(row, torchrun, hpcdist)
    if "output" in row.compares:
        found += _of_output(row, torchrun, hpcdist)
    return found


def _of_files(row, torchrun, hpcdist):
    theirs, ours = (_files(row, outcome) for outcome in (torchrun, hpcdist))
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"file {name}: torchrun's run wrote it, hpcdist's did not"
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"file {name}: hpcdist's run wrote it, torchrun's did not"
    yield from _of_random(theirs, "torchrun")
    yield from _of_random(ours, "hpcdist")
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


def _of_random(files, command):
    """What ranks drew without a seed: each must have drawn something else."""
    paths = [path for name, path in files.items() if name.startswith("random-")]
    drawn = [json.loads(path.read_text()) for path in paths]
    for name in sorted({name for one in drawn for name in one}):
        values = [json.dumps(one.get(name)) for one in drawn]
        if len(set(values)) < len(values):
            yield f"random numbers of {name}: the same on several ranks under {command}"


def _of_file(row, name, theirs, ours):
    reader = _reader(name)
    values = [_read(reader, path) for path in (theirs, ours)]
    if not all(isinstance(value, dict) for value in values):
        if values[0] != values[1]:
            yield f"file {name}: torchrun {_cut(values[0])}, hpcdist {_cut(values[1])}"
        return
    folders = [str(path).removesuffix(f"/{name}") for path in (theirs, ours)]
    flat = [
        {key: _placed(value, folder) for key, value in flatten(one)}
        for one, folder in zip(values, folders, strict=True)
    ]
    for key in sorted(flat[0].keys() | flat[1].keys()):
        one, other = (each.get(key, "(missing)") for each in flat)
        if one != other and not _matches(key, row.differs):
            yield f"{name}, {key}: torchrun {_cut(one)}, hpcdist {_cut(other)}"


def _read(reader, path):
    """What the reader makes of the file; of one that is not whole, why it cannot be read."""
    try:
        return reader(path)
    except Exception as error:  # noqa: BLE001 - each format has its own
        return f"{type(error).__name__}: {error}"


def flatten(value, prefix=""):
    """Pairs of a dotted name and a value, of objects within objects."""
    if not isinstance(value, dict) or not value:
        yield prefix, value
        return
    for key, inner in value.items():
        yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))


def _placed(value, folder):
    """The value with the name of the run's own folder taken out."""
    return json.loads(json.dumps(value).replace(folder, "FOLDER"))


def _of_output(row, torchrun, hpcdist):
    for rank, (theirs, ours) in enumerate(zip(torchrun.output, hpcdist.output, strict=True)):
        one, other = (
            Counter(_ADDRESS.sub("0x", text.replace(str(outcome.folder), "FOLDER")).splitlines())
            for text, outcome in ((theirs, torchrun), (ours, hpcdist))
        )
        only = [
            [line for line in sorted((a - b).elements()) if not _matches(line, row.lines_differ)]
            for a, b in ((one, other), (other, one))
        ]
        if any(only):
            yield f"output of rank {rank}: only under torchrun {only[0]}, under hpcdist {only[1]}"


def _cut(value):
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}... ({len(text)} letters)"


def _reader(name):
    for pattern, reader in _READERS.items():
        if fnmatch.fnmatch(name, pattern):
            return reader
    return lambda path: path.read_bytes()


_READERS = {
    "*.gz": lambda path: gzip.decompress(path.read_bytes()),  # its header has the time
    "facts-*.json": lambda path: json.loads(path.read_text()),
}
