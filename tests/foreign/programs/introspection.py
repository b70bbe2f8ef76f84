"""What tools that look at a program's own source find, as facts-RANK.json."""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import doctest
import importlib
import inspect
import io
import json
import os
import pickle
import pstats
import runpy
import sys
import timeit
import traceback
import typing
import unittest
import warnings

rank = os.environ["RANK"]


@dataclasses.dataclass
class Options:
    """
    >>> Options(2).width
    2
    """

    width: int = 1
    other: Options | None = None


class Case(unittest.TestCase):
    def test_something(self):
        self.assertEqual(Options(3).width, 3)


def usage():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=os.environ["LOCAL_RANK"])
    known, rest = parser.parse_known_args()
    return [parser.format_usage(), vars(known), rest]


def unit_tests():
    program = unittest.main(
        argv=["x"], exit=False, testRunner=unittest.TextTestRunner(io.StringIO())
    )
    return [program.result.testsRun, len(program.result.failures)]


def profiled():
    profile = cProfile.Profile()
    profile.run("Options(1)")
    return pstats.Stats(profile, stream=io.StringIO()).total_calls > 0


def trace():
    try:
        Options(1, 2, 3)
    except TypeError:
        return traceback.format_exc()


def caught_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("here")
    return [seen[0].filename, seen[0].lineno]


def imported_again():
    module = importlib.import_module(os.path.splitext(os.path.basename(__file__))[0])
    return [module.__name__, module.Options is Options, module.__file__]


def read_self():
    with open(__file__) as by_file, open(sys.argv[0]) as by_argument:
        return by_file.read() == by_argument.read()


def main():
    import __main__

    tools = {
        "usage": usage,
        "doctests": lambda: list(doctest.testmod()),
        "unit tests": unit_tests,
        "profiled": profiled,
        "trace": trace,
        "warning": caught_warning,
        "imported again": imported_again,
        "bytecode": lambda: main.__code__.co_filename,
        "reads itself": read_self,
        "stack": lambda: [[os.path.basename(one[1]), one[3]] for one in inspect.stack()],
        "source": lambda: inspect.getsource(Options),
        "hints": lambda: str(typing.get_type_hints(Options)["other"]),
        "pickled": lambda: pickle.dumps(Options(1)).hex(),
        "timed": lambda: timeit.timeit("Options(1)", "from __main__ import Options", number=2) >= 0,
        "run path": lambda: sorted(runpy.run_path(__file__, run_name="other"))[:3],
        "module": lambda: [__main__.Options is Options, Options.__module__, main.__qualname__],
        "members": lambda: [name for name, _ in inspect.getmembers(__main__, inspect.isclass)],
        "argv": lambda: sys.argv,
        "globals": lambda: sorted(name for name in vars(__main__) if name.startswith("__")),
    }
    facts = {}
    for name, tool in tools.items():
        try:
            facts[name] = tool()
        except Exception as error:
            facts[name] = f"{type(error).__name__}: {error}"
    with open(f"facts-{rank}.json", "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
