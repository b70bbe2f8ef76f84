"""Read many damaged inputs of every kind, and print what came of them: `make fuzz`."""

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fuzz_kinds import KINDS
from fuzzing import fuzz


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=10_000, help="inputs of each kind")
    parser.add_argument("--seed", type=int, help="by default, another one each time")
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default, all")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    warnings.simplefilter("ignore")
    print(f"seed {seed}\n{'kind':<15}{'inputs':>10}{'refused':>10}{'failures':>10}{'CPU s':>8}")
    failed = Path("fuzz-failures")
    num_failures = 0
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CONFIG_HOME"] = folder
            begin_s = time.process_time()
            samples = KINDS[kind](Path(folder))
            result = fuzz(kind, samples, number=options.number, seed=seed, first=options.first)
        took_s = time.process_time() - begin_s
        counts = (result.inputs, result.refused, len(result.failures))
        print(
            f"{kind:<15}" + "".join(f"{count:>10,}" for count in counts) + f"{took_s:>8.1f}",
            flush=True,
        )
        for failure in result.failures:
            failed.mkdir(exist_ok=True)
            path = failed / f"{kind.replace(' ', '-')}-{seed}-{failure.number}"
            path.write_bytes(failure.content)
            print(f"  input {failure.number} (in {path}): {failure.error}", flush=True)
        num_failures += len(result.failures)
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
