"""Damaged inputs of every kind end in values or in a refusal, and in nothing else.

Each input follows from the seed, the kind and its number: `make fuzz` reads many more, of another
seed each time, and keeps those that failed in fuzz-failures.
"""

import os
import warnings
from pathlib import Path

import pytest
from fuzz_kinds import KINDS
from fuzzing import fuzz

NUMBER = int(os.environ.get("HPCDIST_FUZZ_NUMBER", "150"))
FAILURES = Path("fuzz-failures").absolute()
SEED = int(os.environ.get("HPCDIST_FUZZ_SEED", "1"))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_are_read_or_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "perf")  # for run directories
    monkeypatch.chdir(tmp_path)
    samples = KINDS[kind](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, on what is odd in a picture
        refused, failures = fuzz(kind, samples, number=NUMBER, seed=SEED)
    print(f"{kind}: {NUMBER:,} inputs of seed {SEED}, {refused:,} refused")
    for number, content, _ in failures:
        path = FAILURES / f"{kind.replace(' ', '-')}-{SEED}-{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert not failures, "\n".join(f"input {n} of seed {SEED}: {said}" for n, _, said in failures)
    assert refused > 0
