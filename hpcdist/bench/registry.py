"""All benchmarks, in the order in which a summary lists them."""

from __future__ import annotations

from typing import Any

from hpcdist.bench.allreduce.report import AllreduceBenchmark
from hpcdist.bench.benchmark import Benchmark
from hpcdist.bench.dataload.report import DataloadBenchmark
from hpcdist.bench.inference.report import InferenceBenchmark

BENCHMARKS: tuple[Benchmark[Any], ...] = (
    AllreduceBenchmark(),
    InferenceBenchmark(),
    DataloadBenchmark(),
)
