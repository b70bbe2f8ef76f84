"""Programs that know nothing of hpcdist leave what they leave under torchrun, run side by side."""

from importlib.util import find_spec

import pytest
from foreign.comparing import differences
from foreign.running import run_both
from foreign.table import ROWS

_LONGEST_S = 420


def _parameter(row):
    marks = [pytest.mark.foreign, pytest.mark.timeout(_LONGEST_S)] if row.is_slow else []
    return pytest.param(row, id=row.name, marks=marks)


@pytest.mark.parametrize("row", [*map(_parameter, ROWS)])
def test_a_program_leaves_what_it_leaves_under_torchrun(row, launchers, tmp_path, missing):
    lacking = [package for package in row.packages if find_spec(package) is None]
    if lacking:
        missing(f"{', '.join(lacking)} not installed: make foreign does it")
    torchrun, hpcdist = run_both(launchers, row, tmp_path)
    found = differences(row, torchrun, hpcdist)
    assert torchrun.exit_code == row.exit_code, torchrun.told + "".join(torchrun.output)
    assert not found, _report(found, torchrun, hpcdist)


def _report(found, torchrun, hpcdist):
    sections = ["", *found, "", "== torchrun", torchrun.told[-3000:], "== hpcdist", hpcdist.told]
    for rank, output in enumerate(hpcdist.output):
        sections += [f"== hpcdist, rank {rank}", output[-3000:]]
    return "\n".join(sections)
