"""The profiles that documentation and package show are ones that load."""

import re
from pathlib import Path

import pytest

from hpcdist.cluster.load import all_profiles, load_profile, shipped_file, shipped_files

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cluster-profiles.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_page_is_a_profile(profiles, text):
    profiles.project(text)
    _, found = all_profiles()
    assert found
    for each in found:
        load_profile(each)


@pytest.mark.parametrize("name", shipped_files())
def test_a_file_that_ships_is_of_profiles_and_says_which_is_the_default(profiles, name):
    profiles.project(shipped_file(name))
    default, found = all_profiles()
    assert default in found
    for each in found:
        load_profile(each)
