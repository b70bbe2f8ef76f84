"""Directives of bsub where sites differ, and requests that it cannot be given."""

import pytest
from script_jobs import job, target

from hpcdist.base.errors import ProfileError
from hpcdist.base.files import shipped_folder
from hpcdist.cluster.load import load_profile
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.schedulers.lsf.lsf import scheduler


def directives(spec, cluster, where):
    return [one.line for one in scheduler.directives(spec, cluster, where)]


def profile(**values):
    return ClusterProfile(scheduler="lsf", **values)


@pytest.mark.parametrize(
    ("mem_gb", "slots", "text"), [(10, 3, "3334MB"), (1.1, 1, "1100MB"), (0.3, 3, "100MB")]
)
def test_memory_is_rounded_up_and_never_by_noise(mem_gb, slots, text):
    asked = directives(job(cpus_per_gpu=slots, mem_gb=mem_gb), profile(), target())
    assert f"rusage[mem={text}]" in "\n".join(asked)


@pytest.mark.parametrize(
    ("cluster", "message", "hint"),
    [
        (profile(directives=["-R span[ptile=1]"]), "does not go together", "--nodes"),
        (profile(account='a"b'), 'a"b cannot stand in a #BSUB line', "double quotes"),
    ],
)
def test_what_lsf_cannot_be_asked_for_is_told(cluster, message, hint):
    with pytest.raises(ProfileError) as caught:
        directives(job(nodes=2), cluster, target())
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["-Rfast"], "select[fast] rusage[mem=1000MB]"),
        (['-R "a || b"', "-R 'select[c]'"], "select[(a || b) && (c)] rusage[mem=1000MB]"),
        (["-R rusage[mem=5GB:tmp=5]"], "rusage[tmp=5:mem=1000MB]"),
        (["-R cu[maxcus=1]", "-R same[model]"], "rusage[mem=1000MB] same[model] cu[maxcus=1]"),
    ],
)
def test_the_sections_of_the_directives_and_hpcdists_own_become_one_string(given, text):
    asked = directives(job(mem_gb=1), profile(directives=given), target())
    assert f'-R "{text}"' in asked


def test_the_profile_for_dtu_asks_as_its_pages_do(tmp_path, monkeypatch):
    text = (shipped_folder("templates") / "clusters" / "dtu.yaml").read_text()
    (tmp_path / "hpcdist.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    asked = directives(job(nodes=2, gpus=2), load_profile("dtu").profile, target())
    options = {"-q gpuv100", "-n 16", '-gpu "num=2:mode=exclusive_process"', "-W 24:00"}
    assert {*options, '-R "span[ptile=8] rusage[mem=5GB]"'} <= set(asked)
