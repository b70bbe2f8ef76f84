"""What would make loading faster, by where the time of an image goes; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.base.text import show_percent, show_time
from hpcdist.bench.dataload.combinations import in_job, varied
from hpcdist.bench.dataload.figures import PARTS, LoadingCell, Setting
from hpcdist.bench.dataload.series import Series, alternatives, is_faster, is_unclear, spread
from hpcdist.bench.dataload.words import BRIEF, num_cpus, shortened

_TELLING_SHARE = 0.25
"""Of the work per image; of parts below it is not spoken."""

_NAMED_SHARE = 0.005  # what would be 0 % is not listed
_BUSY = 0.8  # of the CPUs: then only less work per image helps
_UNTOLD_RATIO = 20  # what stands in the way then is too small to be measured well
_FEW_READS = 8  # at once
_AXES = ("workers", "transform", "batch_size")
"""Keys that are compared otherwise, or that are no choice."""


def advise(cell: LoadingCell, series: Series, cells: Sequence[LoadingCell]) -> Iterator[str]:
    """On a way of loading, which is the best of a series, beside all others of its node.

    Of the keys that were compared the figures speak, so that nothing is advised about them.
    """
    total_s = work_s(cell)
    if total_s:
        compared = varied([other.setting for other in cells])
        yield from _on_parts(cell, total_s)
        yield from _on_busy_cpus(cell)
        yield from _on_telling_parts(cell, total_s, compared)
        if cell.parts_s.get("read", 0.0) >= _TELLING_SHARE * total_s and not _is_busy(cell):
            yield from _on_reads(cell, more_workers=series[-1] is cell)
    yield from _on_choices(cell, cells)


def work_s(cell: LoadingCell) -> float:
    """Of an image, in all parts."""
    return sum(cell.parts_s.values())


def computing_s(cell: LoadingCell) -> float:
    """Of an image, in which a CPU is busy."""
    return sum(cell.parts_s.get(name, 0.0) for name in ("decode", "transform", "collate"))


def _on_parts(cell: LoadingCell, total_s: float) -> Iterator[str]:
    shares = {name: cell.parts_s.get(name, 0.0) / total_s for name in PARTS}
    told = ", ".join(
        f"{_NAMES[name]} {show_percent(share)}"
        for name, share in shares.items()
        if share >= _NAMED_SHARE
    )
    whose = shortened(cell.setting.transform, BRIEF)
    yield f"An image takes {show_time(total_s)} of work ({whose}): {told}."


_NAMES = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transform",
    "collate": "collate",
    "hand_over": "hand-over and waiting",
}


def _is_busy(cell: LoadingCell) -> bool:
    return cell.images_per_s * computing_s(cell) / cell.cpus >= _BUSY


def _on_busy_cpus(cell: LoadingCell) -> Iterator[str]:
    if _is_busy(cell):
        yield (
            f"The {num_cpus(cell.cpus)} {'are' if cell.cpus > 1 else 'is'} busy with it: only less "
            "work per image or more CPUs (resources.cpus_per_gpu) would help."
        )


def _on_telling_parts(cell: LoadingCell, total_s: float, compared: Sequence[str]) -> Iterator[str]:
    parts = {name: cell.parts_s[name] for name in PARTS if name in cell.parts_s}
    for name, part_s in sorted(parts.items(), key=lambda part: -part[1]):
        if part_s >= _TELLING_SHARE * total_s:
            advice = _would_help(name, cell.setting, parts, total_s)
            yield from (text for key, text in advice if key not in compared)


def _would_help(
    name: str, setting: Setting, parts: dict[str, float], total_s: float
) -> Iterator[tuple[str, str]]:
    """Keys, and what could be done with them."""

    def most(*saved: str) -> str:
        left_s = total_s - sum(parts.get(part, 0.0) for part in saved)
        if left_s * _UNTOLD_RATIO < total_s:
            return "many times as fast"
        return f"at most {total_s / left_s:.1f} times as fast"

    if name in {"read", "decode"} and setting.cache is False:
        yield (
            "cache",
            (
                "data.cache=auto keeps decoded images that fit in memory: later epochs are "
                f"{most('read', 'decode')}."
            ),
        )
    if name == "decode":
        yield "decoder", _LESS_DECODING[setting.decoder]
    if name == "transform":
        yield "", f"Cheaper transforms would help: without any, {most('transform')}."
        if setting.device_transform is not True:
            yield (
                "device_transform",
                "data.device_transform=true has GPUs do them, of which most are there for batches.",
            )
    if name in {"collate", "hand_over"} and setting.handover == "float32":
        yield "handover", "data.handover=uint8 hands a quarter of the bytes over."


_LESS_DECODING = {
    "pil": "data.decoder=exact decodes to the same pixels in less time.",
    "exact": "data.decoder=fast takes less time, but its pixels differ a little.",
    "fast": "Smaller files, or data.size below that of the files, would take less decoding.",
}


def _on_reads(cell: LoadingCell, *, more_workers: bool) -> Iterator[str]:
    """Of storage that answers late; `more_workers`: it is not known that they gain nothing."""
    read_s, setting = cell.parts_s["read"], cell.setting
    at_once = cell.images_per_s / cell.ranks * read_s / max(1, setting.workers)
    now = f", each worker has about {at_once:.0f} reads under way" if at_once >= _OVERLAP else ""
    yield f"Reading a file takes {show_time(read_s)}{now}."
    reads = 2 * max(setting.reads or 0, round(at_once), _FEW_READS)
    workers = "more workers than CPUs, " if more_workers else ""
    yield f"More at once (data.reads={reads}), {workers}or a copy on a local disk would help."


_OVERLAP = 1.2  # reads at once: a little more than one may be chance


def _on_choices(cell: LoadingCell, cells: Sequence[LoadingCell]) -> Iterator[str]:
    """What was gained by the keys that were compared, all else being equal."""
    for key in varied([other.setting for other in cells]):
        same = sorted([cell, *alternatives(cell, cells, key)], key=lambda each: each.images_per_s)
        if key not in _AXES and len(same) > 1:
            yield f"data.{key}: {_on_choice(key, same)}."


def _on_choice(key: str, same: Sequence[LoadingCell]) -> str:
    """Of ways that differ in one key, the slowest first."""
    slow, fast = same[0], same[-1]
    own, other = (in_job(getattr(each.setting, key)) for each in (fast, slow))
    if any(map(is_unclear, same)):
        return f"cannot be told, the passes differ by {show_percent(max(map(spread, same)))} (sd)"
    if not is_faster(fast, slow):
        return f"{own} and {other} load alike, all else as above"
    ratio = fast.images_per_s / slow.images_per_s
    return f"{own} loads {ratio:.2f} times as much as {other}, all else as above"
