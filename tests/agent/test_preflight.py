"""The preflight: which nodes are not fit for a run, by what they measured."""

import pytest

from hpcdist.agent.node import NodeFacts
from hpcdist.agent.preflight import Figures, judge


def ring(*pairs):
    """Figures of nodes in a ring, by the seconds of each with the next."""
    last = len(pairs)
    return {
        node: {"sums_s": {(node + 1) % last: pairs[node], (node - 1) % last: pairs[node - 1]}}
        for node in range(last)
    }


def products(*seconds):
    return {node: {"product_s": each} for node, each in enumerate(seconds)}


FOUR, PAIR = ring(1.0, 1.0, 1.0, 1.0), ring(None, None)
SLOWEST = ring(1.0, None, None)
SLOWEST[2] = SLOWEST[2] | {"product_s": 9.0}


@pytest.mark.parametrize(
    ("figures", "unfit", "says"),
    [
        pytest.param(products(1.0), [], "", id="alone"),
        pytest.param(products(1.0, 1.9), [], "", id="not clearly slower"),
        pytest.param(products(1.0, 3.0), [1], "product took 3.0 times", id="the slower of two"),
        pytest.param(FOUR, [], "", id="equal pairs"),
        pytest.param(ring(1.0, None, 1.0, 9.0), [], "", id="pairs that did not get on"),
        pytest.param(ring(1.0, 1.0, None, None), [3], "no all-reduce with", id="a cut network"),
        pytest.param(ring(1.0, 1.0, 9.0, 9.0), [3], "all-reduce took 9.0 times", id="a slow one"),
        pytest.param(ring(1.0, None, None), [2], "no all-reduce with", id="one of three is cut"),
        pytest.param(SLOWEST, [2], "product took 9.0 times", id="too slow for any all-reduce"),
        pytest.param({0: {"fault": "E: x"}}, [0], "E: x", id="wrong by itself"),
        pytest.param(PAIR | {1: {"fault": "x"}}, [1], "preflight: x", id="its partner is wrong"),
        pytest.param(FOUR | {2: None}, [2], "did not answer within", id="no answer"),
        pytest.param(PAIR, [], "", id="nobody knows which of two: the ranks will tell"),
        pytest.param(FOUR | dict.fromkeys(range(3)), None, "3 of 4 nodes are not", id="most"),
    ],
)
def test_who_failed_the_preflight(figures, unfit, says):
    for first in (0, 4):  # the nodes before it are lost
        numbers = [first + node for node in figures]
        members = {node: NodeFacts(node=node, host=f"host{node}") for node in numbers}
        measured = {first + n: Figures(**{"product_s": 1.0} | f) for n, f in figures.items() if f}
        verdict, nodes = judge(measured, members)
        if unfit == []:
            assert (verdict, nodes) == (None, set())
            continue
        assert nodes == {first + node for node in unfit or []}
        assert list(verdict.left_out) == [f"host{first + node}" for node in unfit or []]
        assert verdict.try_elsewhere == bool(unfit)
        assert says in verdict.message


def test_a_run_whose_node_computes_wrongly_starts_no_rank(launch, write_script):
    wrong = {"preflight": True, "change": "harness:multiply_wrongly"}
    launched = launch(write_script(""), **wrong)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.state) == ("launch", "failed")
    assert "failed the preflight: ArithmeticError: 1024 rows" in verdict.message
    assert launched.run.log_files() == []
