"""The interface of a benchmark to the summary: its events, its result, and their display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from msgspec import Meta, Struct

from hpcdist.base.plotting import Picture
from hpcdist.base.statistics import Measure, spread_measure
from hpcdist.base.table import Format, Table, each
from hpcdist.base.text import decimals_for, format_number

# The bounds keep what is computed from damaged files finite.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e12)]
PerSecond = Annotated[float, Meta(ge=0, le=1e18)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1, le=10**15)]

ResultT = TypeVar("ResultT", bound=Struct)


@dataclass(frozen=True, kw_only=True)
class NumberedResult(Generic[ResultT]):
    """The result of one run, with what the report calls the run."""

    number: int
    run: str
    """Id of the run."""
    size: str
    """Nodes and GPUs of each: `2 x 4`."""
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

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> ResultT | None:
        """Return the result of one rank's events by kind; None where it measured nothing."""
        raise NotImplementedError

    def conclusions(self, result: ResultT) -> list[str]:
        """Return the sentences that answer what the benchmark was run for."""
        raise NotImplementedError

    def details(self, result: ResultT) -> list[str]:  # noqa: ARG002
        """Return remarks: what the conclusions rest on, and what would help."""
        return []

    def tables(self, result: ResultT, number: int) -> Iterator[Table[Any]]:
        """Make the tables of the run with this number."""
        raise NotImplementedError

    def measured(self, result: ResultT) -> Iterator[tuple[str, Struct]]:
        """List what was measured, with its kind of line in the CSV."""
        raise NotImplementedError

    def rates(self, result: ResultT) -> Iterator[tuple[str, Measure]]:
        """List the quantities, with units, that a baseline is compared by; more is better."""
        raise NotImplementedError

    def points(self, result: ResultT) -> Iterator[tuple[str, int, float]]:  # noqa: ARG002
        """List what trackers get: series, the place that takes the step's, and value."""
        return iter(())

    def pictures(self, job: str, runs: Sequence[NumberedResult[ResultT]]) -> Iterator[Picture]:
        """List the pictures of the runs of one job, oldest first; none is drawn yet."""
        raise NotImplementedError


def rate_measure(
    rate: float, *, mean_time_s: float | None, sd_time_s: float | None, repeats: int
) -> Measure:
    """Return a rate whose relative spread is that of the time."""
    sd = None if sd_time_s is None or not mean_time_s else rate * sd_time_s / mean_time_s
    return spread_measure(rate, sd, repeats, over="windows")


def three_digits(per: float) -> Format:
    """Format each value in a unit with three digits, where values differ by powers of ten."""
    return each(lambda value: format_number(value / per, decimals_for([value / per])))
