"""LSF's resource requirement strings: several in, one out."""

import pytest

from hpcdist.cluster.requirement import (
    merge_requirements,
    parse_requirement,
    requirement_of,
    rusage_value,
    write_requirement,
)


def merged(*texts):
    return write_requirement(merge_requirements(parse_requirement(text) for text in texts))


@pytest.mark.parametrize(
    ("directive", "value"),
    [
        ('-R "select[a] rusage[b=1]"', "select[a] rusage[b=1]"),
        ("-R 'select[hname!=x]'", "select[hname!=x]"),
        ("-R select[a]", "select[a]"),
        ("-Rfast", "fast"),
        ("-r", None),
        ("-x", None),
    ],
)
def test_the_value_of_a_directive_is_found(directive, value):
    assert requirement_of(directive) == value


@pytest.mark.parametrize("directive", ["-R", "-R a b", '-R "a" -x', '-R "a'])
def test_a_directive_of_more_or_less_than_one_string_is_an_error(directive):
    with pytest.raises(ValueError, match="must be one -R"):
        requirement_of(directive)


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (["span[hosts=1]", "select[a]"], "select[a] span[hosts=1]"),
        (["fast", "span[hosts=1]"], "select[fast] span[hosts=1]"),
        (["a || b", "select[c]"], "select[(a || b) && (c)]"),
        (["rusage[tmp=5]", "rusage[mem=1GB]"], "rusage[tmp=5:mem=1GB]"),
        (["rusage[mem=5GB:tmp=5]", "rusage[mem=1GB]"], "rusage[tmp=5:mem=1GB]"),
        (["rusage[mem=5GB]", "rusage[mem=1GB]"], "rusage[mem=1GB]"),
        (
            ["rusage[mem=5GB:duration=1h, a=1:duration=2]", "rusage[mem=1GB]"],
            "rusage[a=1:duration=2, mem=1GB]",
        ),
        (["rusage[a=1, b=2]", "rusage[mem=1GB]"], "rusage[a=1:b=2:mem=1GB]"),
        (["cu[type=rack]", "cu[maxcus=1] same[model]"], "same[model] cu[type=rack:maxcus=1]"),
        ([], ""),
    ],
)
def test_sections_become_one_string_that_asks_for_all(texts, text):
    assert merged(*texts) == text


@pytest.mark.parametrize(("rusage", "value"), [("a=1:mem=5GB", "5GB"), ("a=1", None), ("", None)])
def test_a_resource_is_found_by_its_name(rusage, value):
    assert rusage_value(rusage, "mem") == value
