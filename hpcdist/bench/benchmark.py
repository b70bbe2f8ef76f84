"""The interface of a benchmark to the summary: its events, its result, and their display."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
)

from msgspec import Meta, Struct

from hpcdist.base.plotting import Picture, first, label
from hpcdist.base.statistics import (
    Measure,
    Ratio,
    differs,
    mean,
    spread_measure,
    standard_deviation,
)
from hpcdist.base.table import Format, Table, each
from hpcdist.base.text import decimals_for, format_number
from hpcdist.runs.run import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PICTURES = 3

# The bounds keep every figure that is computed from damaged files finite.
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e12)]
PerSecond = Annotated[float, Meta(ge=0, le=1e18)]
PositiveCount = Annotated[int, Meta(ge=1, le=10**15)]

ResultT = TypeVar("ResultT", bound=Struct)


@dataclass(frozen=True, kw_only=True)
class NumberedResult(Generic[ResultT]):
    """The result of one run, with what the report calls the run."""

    number: int
    run: str
    """Id of the run."""
    name: str
    """Its name in pictures, unlike that of others there."""
    result: ResultT


class Benchmark(Generic[ResultT]):
    """A benchmark as the summary knows it. A new one is a line in `bench/registry.py`, and a field
    of `RunSummary` that is named like its key."""

    key: ClassVar[str]
    """The result's key in the summary's JSON."""
    events: ClassVar[Mapping[str, type[Struct]]]
    """Kinds of events that the ranks record, and their types."""
    measurements: ClassVar[Mapping[str, type[Struct]]]
    """Kinds of lines in the benchmarks' CSV, and the types whose fields are its columns."""
    lines: ClassVar[Mapping[str, str]]
    """Fields of the result that have the lines of each kind."""
    picture: ClassVar[tuple[str, str]]
    """Name and description of the picture of one run, where there is one."""

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> ResultT | None:
        """Return the result of one rank's events by kind; None where it measured nothing."""
        raise NotImplementedError

    def conclusions(self, result: ResultT) -> list[str]:
        """Return the sentences that answer what the benchmark was run for."""
        sentences: list[str] = result.conclusions  # type: ignore[attr-defined]
        return sentences

    def details(self, result: ResultT) -> list[str]:
        """Return remarks: what the conclusions rest on, and what would help."""
        return getattr(result, "details", [])

    def tables(self, result: ResultT, number: int) -> Iterator[Table[Any]]:
        """Make the tables of the run with this number."""
        raise NotImplementedError

    def measured(self, result: ResultT) -> Iterator[tuple[str, Struct]]:
        """List what was measured, with its kind of line in the CSV."""
        for kind, name in self.lines.items():
            yield from ((kind, line) for line in getattr(result, name))

    def rates(self, result: ResultT) -> Iterator[tuple[str, Measure]]:
        """List the quantities, with units, that a baseline is compared by; more is better."""
        raise NotImplementedError

    def pictures(
        self,
        job: str,  # noqa: ARG002
        runs: Sequence[NumberedResult[ResultT]],
    ) -> Iterator[Picture]:
        """List the pictures of the runs of one job, which come oldest first; none is drawn yet, and
        titles are drawn by who shows them.

        By default those of the newest runs, which also stand in their folders.
        """
        name, description = self.picture
        drawn, left_out = first(runs[::-1], _MOST_PICTURES)
        for run in drawn:
            yield Picture(
                name=f"{slug(run.run)}-{name}",
                title=f"{label(run.run)}: {name}",
                description=f"Run {run.number}. {description}{left_out}",
                draw=functools.partial(self.draw, run),
                runs=[run.run],
            )

    def draw(self, run: NumberedResult[ResultT]) -> Figure:
        """Draw the picture of one run, without its title."""
        raise NotImplementedError


def timed_fields(times_s: Sequence[float], num_images: int) -> dict[str, Any]:
    """Return the fields of a cell that follow from the times of repeated batches."""
    mean_s = mean(times_s)
    return {
        "repeats": len(times_s),
        "mean_time_s": mean_s,
        "sd_time_s": standard_deviation(times_s),
        "min_time_s": min(times_s),
        "p25_time_s": percentile(times_s, 0.25),
        "median_time_s": percentile(times_s, 0.5),
        "p75_time_s": percentile(times_s, 0.75),
        "images_per_s": num_images / mean_s,
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Timed(Protocol):
    """The times of repeated batches, as `timed_fields` has them."""

    @property
    def p25_time_s(self) -> float | None: ...

    @property
    def median_time_s(self) -> float | None: ...

    @property
    def p75_time_s(self) -> float | None: ...


class Spread(NamedTuple):
    """A time in a picture: its bar reaches from one end to the other."""

    middle_s: float
    low_s: float
    high_s: float

    def rate(self, per: float) -> Spread:
        """Return what is done in this time as a rate: `per` times its inverse."""
        return Spread(per / self.middle_s, per / self.high_s, per / max(self.low_s, 1e-12))


def spread(timed: Timed) -> Spread:
    """Return the median and the quartiles, which never reach zero."""
    middle_s = timed.median_time_s or 0.0
    return Spread(middle_s, timed.p25_time_s or middle_s, timed.p75_time_s or middle_s)


def draw_spreads(
    axes: Axes, xs: Sequence[float], spreads: Sequence[Spread], per: float, **style: Any
) -> None:
    """Draw a line through the middles, with bars to the ends, in a unit that is `per`."""
    axes.errorbar(
        xs,
        [spread.middle_s / per for spread in spreads],
        yerr=[
            [(spread.middle_s - spread.low_s) / per for spread in spreads],
            [(spread.high_s - spread.middle_s) / per for spread in spreads],
        ],
        capsize=4,
        **style,
    )


def is_shorter(time: Ratio) -> bool:
    """Return whether a mean time, as a multiple of another one, is smaller by more than chance;
    where no spread is known, the means alone decide."""
    return time.mean < 1 and differs(time) is not False


def rate_measure(rate: float, time: Measure) -> Measure:
    """Return a rate whose relative spread is that of the time."""
    sd = None if time.sd is None or not time.mean else rate * time.sd / time.mean
    return spread_measure(rate, sd, time.count, over="windows")


def three_digits(per: float) -> Format:
    """Format each value in a unit with three digits, where values differ by powers of ten."""
    return each(lambda value: format_number(value / per, decimals_for([value / per])))
