"""What loading figures mean: how many workers, what is the bottleneck, what would help; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.dataload.combinations import in_job, varied
from hpcdist.dataload.figures import PARTS, LoadingCell, Setting, StepTime
from hpcdist.dataload.series import (
    Series,
    alternatives,
    best_by_transform,
    is_faster,
    recommended,
    slowest_node,
)
from hpcdist.units import show_time

_TELLING_SHARE = 0.25
"""Of the work per image; of parts below it is not spoken."""

_BUSY = 0.8  # of the CPUs: then only less work per image helps
_MUCH = 1.2  # times another time: then it is told
_UNTOLD_RATIO = 20  # what stands in the way then is too small to be measured well
_FEW_READS = 8  # at once
_NOISY = 0.2  # sd to mean from which on figures say little
_AXES = ("workers", "transform", "batch_size", "root")
"""Keys that are compared otherwise, or that are no choice."""


def conclude(cells: Sequence[LoadingCell], steps: Sequence[StepTime]) -> list[str]:
    """Sentences on the figures, those of the slowest node where there are several."""
    if not cells:
        return []
    node = slowest_node(cells)
    own = [cell for cell in cells if cell.node == node]
    best = best_by_transform(own)
    chosen = [recommended(series) for series in best.values()]
    dearest = max(chosen, key=_work_s)
    told = [*_on_nodes(cells, node)]
    told += [_on_workers(transform, series) for transform, series in best.items()]
    told += _on_bottleneck(chosen, steps)
    told += _on_parts(dearest, varied([cell.setting for cell in own]))
    told += _on_choices(dearest, own)
    told += _on_first(dearest)
    told += _on_noise(chosen)
    return told


def _on_nodes(cells: Sequence[LoadingCell], node: int) -> Iterator[str]:
    """Only where nodes differ."""
    others = [cell for cell in cells if cell.node != node]
    if not others:
        return
    slow = max((cell for cell in cells if cell.node == node), key=_rate)
    fast = max(others, key=_rate)
    ratio = _rate(fast) / _rate(slow)
    if ratio >= _MUCH:
        yield (
            f"Node {node} ({slow.host}) loads {_rate(slow):,.0f} images/s at its best, node "
            f"{fast.node} ({fast.host}) {ratio:.2f} times as many: all that follows is about the "
            "slower one, which the others would wait for."
        )


def _on_workers(transform: str, series: Series) -> str:
    cell = recommended(series)
    workers = cell.setting.workers
    text = (
        f"Transform {transform}: {_workers(workers)} {_rate(cell):,.0f} images/s, "
        f"{show_time(cell.mean_time_s)} per batch of {cell.setting.batch_size:,}"
    )
    alone = series[0]
    if workers and not alone.setting.workers:
        text += f", {alone.mean_time_s / cell.mean_time_s:.2f} times the rate without workers"
    return f"{text}.{_on_more(cell, series)}"


def _on_more(cell: LoadingCell, series: Series) -> str:
    """Of more workers: what they gain, or that nobody tried."""
    more = [other for other in series if other.setting.workers > cell.setting.workers]
    cpus = cell.cpus / cell.ranks
    told = f"the {_cpus(cpus)} of each rank" if cell.ranks > 1 else f"its {_cpus(cpus)}"
    if more:
        most = more[-1]
        return (
            f" More workers gain nothing on {told}: {_workers(most.setting.workers)} it is "
            f"{_rate(most) / _rate(cell):.2f} times that."
        )
    if cell.setting.workers < int(cpus):
        return (
            f" More workers were not tried, and {told} may have room for them: "
            f"data.workers={cell.setting.workers * 2 or 1}."
        )
    return f" {told[:1].upper()}{told[1:]} {'are' if cpus > 1 else 'is'} in use then."


def _on_bottleneck(cells: Sequence[LoadingCell], steps: Sequence[StepTime]) -> Iterator[str]:
    """Of each transform against a training step, where that is known."""
    by_size = {step.batch_size: step for step in steps}
    named = len(cells) > 1
    open_cells = []
    for cell in cells:
        step = by_size.get(cell.setting.batch_size)
        if step is None:
            open_cells.append(cell)
        else:
            yield _against(cell, step, named=named)
    if open_cells:
        listed = ", ".join(
            f"{show_time(cell.mean_time_s)} or more per batch of {cell.setting.batch_size:,}"
            f"{f' ({cell.setting.transform})' if named else ''}"
            for cell in open_cells
        )
        yield (
            f"Loading keeps up with training steps of {listed}; dataload.step_time_s or model.name "
            "compares it with yours."
        )


def _against(cell: LoadingCell, step: StepTime, *, named: bool) -> str:
    what = f"With transform {cell.setting.transform}, loading" if named else "Loading"
    whose = f"a step of {step.model}" if step.model else "a training step"
    took = f"{whose} takes {show_time(step.mean_time_s)}, a batch {show_time(cell.mean_time_s)}"
    if cell.mean_time_s <= step.mean_time_s:
        text = f"{what} is not the bottleneck, the model is: {took}, ready before it is wanted."
    else:
        idle = 1 - step.mean_time_s / cell.mean_time_s
        text = f"{what} is the bottleneck: {took}, so that the model waits {idle:.0%} of the time."
    return text + (_on_shared_cpus(cell, step) if step.on_cpus else "")


def _on_shared_cpus(cell: LoadingCell, step: StepTime) -> str:
    batch_s = _computing_s(cell) * cell.setting.batch_size * cell.ranks / cell.cpus
    return (
        f" Both were measured alone, but want the same CPUs: together a step takes about "
        f"{show_time(max(cell.mean_time_s, step.mean_time_s + batch_s))}."
    )


def _on_parts(cell: LoadingCell, compared: Sequence[str]) -> Iterator[str]:
    """Where the time of an image goes, and what would save some of it: of the keys that were
    compared, the figures speak."""
    total_s = _work_s(cell)
    if not total_s:
        return
    setting = cell.setting
    parts = {name: cell.parts_s[name] for name in PARTS if name in cell.parts_s}
    listed = ", ".join(f"{_NAMES[name]} {part / total_s:.0%}" for name, part in parts.items())
    took = f"An image takes {show_time(total_s)} of work with transform {setting.transform}"
    yield f"{took}: {listed}."
    busy = _rate(cell) * _computing_s(cell) / cell.cpus
    if busy >= _BUSY:
        yield (
            f"The {_cpus(cell.cpus)} {'are' if cell.cpus > 1 else 'is'} busy with it: only less "
            "work per image, or more CPUs (resources.cpus_per_gpu), would load faster."
        )
    for name, part_s in sorted(parts.items(), key=lambda part: -part[1]):
        if part_s >= _TELLING_SHARE * total_s:
            advice = _would_help(name, setting, parts, total_s)
            yield from (text for key, text in advice if key not in compared)
    if parts.get("read", 0.0) >= _TELLING_SHARE * total_s:
        yield _on_reads(cell, parts["read"])


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
                "data.cache=auto would save reading and decoding from the second epoch on, where "
                f"the decoded images fit in memory: {most('read', 'decode')}."
            ),
        )
    if name == "decode":
        yield "decoder", _LESS_DECODING[setting.decoder]
    if name == "transform":
        yield "", f"Cheaper transforms would help: without any, {most('transform')}."
    if name in {"collate", "hand_over"} and setting.handover == "float32":
        yield "handover", "data.handover=uint8 hands a quarter of the bytes over."


def _on_reads(cell: LoadingCell, read_s: float) -> str:
    """Of storage that answers late."""
    at_once = _rate(cell) / cell.ranks * read_s / max(1, cell.setting.workers)
    now = f"each worker has about {at_once:.0f} reads under way already, "
    if at_once < _MUCH:
        now = ""
    reads = 2 * max(cell.setting.reads or 0, round(at_once), _FEW_READS)
    return (
        f"Reading a file takes {show_time(read_s)}: {now}more at once (data.reads={reads}), "
        "workers beyond the number of CPUs, or a copy on a disk of the node would help."
    )


_LESS_DECODING = {
    "pil": "data.decoder=exact decodes to the same pixels in less time.",
    "exact": "data.decoder=fast decodes in less time, with data.size below that of the files much "
    "less; its pixels differ a little.",
    "fast": "Smaller files, or data.size below that of the files, would take less decoding.",
}

_NAMES = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transform",
    "collate": "collate",
    "hand_over": "hand-over and waiting",
}


def _on_choices(cell: LoadingCell, cells: Sequence[LoadingCell]) -> Iterator[str]:
    """What was gained by the keys that were compared, all else being equal."""
    for key in varied([other.setting for other in cells]):
        if key in _AXES:
            continue
        same = sorted([cell, *alternatives(cell, cells, key)], key=_rate)
        slow, fast = same[0], same[-1]
        own, other = (in_job(getattr(each.setting, key)) for each in (fast, slow))
        if is_faster(fast, slow):
            ratio = _rate(fast) / _rate(slow)
            yield (
                f"data.{key}: {own} loads {ratio:.2f} times as much as {other}, all else as above."
            )
        elif slow is not fast:
            yield f"data.{key}: {own} and {other} load alike, all else as above."


def _on_first(cell: LoadingCell) -> Iterator[str]:
    ratio = cell.first_time_s / cell.mean_time_s
    if cell.first_files != "memory" and ratio >= _MUCH:
        yield (
            f"The first pass took {ratio:.1f} times as long per batch"
            f"{_TEMPERATURES[cell.first_files]}; its first batch was there after "
            f"{show_time(cell.start_time_s)}."
        )


def _on_noise(cells: Sequence[LoadingCell]) -> Iterator[str]:
    worst = max((cell.sd_time_s or 0.0) / cell.mean_time_s for cell in cells)
    if worst >= _NOISY:
        yield (
            f"The passes differ by up to {worst:.0%} (sd): something else used these CPUs or the "
            "storage, and what is said here is uncertain; run it again."
        )


_TEMPERATURES = {
    "cold": ", with files that came from storage",
    "warm": ", though its files were in the memory of the system already",
    "unknown": " (whether its files were in the memory of the system cannot be told here)",
}


def _computing_s(cell: LoadingCell) -> float:
    """Of an image, in which a CPU is busy."""
    return sum(cell.parts_s.get(name, 0.0) for name in ("decode", "transform", "collate"))


def _work_s(cell: LoadingCell) -> float:
    return sum(cell.parts_s.values())


def _rate(cell: LoadingCell) -> float:
    return cell.images_per_s


def _workers(number: int) -> str:
    """In one rank."""
    if not number:
        return "without workers"
    return f"with {number} worker{'s' if number > 1 else ''}"


def _cpus(number: float) -> str:
    return f"{number:g} CPU{'' if number == 1 else 's'}"
