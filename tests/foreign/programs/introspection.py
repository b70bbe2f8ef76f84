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
import sys
import traceback
import typing
import unittest
import warnings


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


def unit_tests():
    program = unittest.main(
        argv=["x"], exit=False, testRunner=unittest.TextTestRunner(io.StringIO())
    )
    return [program.result.testsRun, len(program.result.failures)]


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


TOOLS = {
    "usage": lambda: argparse.ArgumentParser().format_usage(),
    "doctests": lambda: list(doctest.testmod()),
    "unit tests": unit_tests,
    "profiled": lambda: cProfile.Profile().run("Options(1)") is not None,
    "trace": trace,
    "warning": caught_warning,
    "imported again": imported_again,
    "bytecode": lambda: trace.__code__.co_filename,
    "source": lambda: inspect.getsource(Options),
    "hints": lambda: str(typing.get_type_hints(Options)["other"]),
    "pickled": lambda: pickle.dumps(Options(1)).hex(),
    "module": lambda: [sys.modules["__main__"].Options is Options, Options.__module__],
}

if __name__ == "__main__":
    facts = {}
    for name, tool in TOOLS.items():
        try:
            facts[name] = tool()
        except Exception as error:
            facts[name] = f"{type(error).__name__}: {error}"
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(facts, file)
