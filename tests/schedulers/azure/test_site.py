"""The doctor on Azure, and a first profile made of what a workspace tells."""

import json

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import AzureOptions
from hpcdist.schedulers.azure.site import find_workspace

SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
NAMES = {"subscription_id": SUBSCRIPTION, "resource_group": "course", "workspace_name": "ml-course"}
FOUND = AzureOptions(subscription=SUBSCRIPTION, resource_group="course", workspace="ml-course")


def findings(hpcdist, *words, code=0):
    found = json.loads(hpcdist("doctor", "--no-job", "--json", *words, code=code).stdout)
    return {one["name"]: one for one in found}


def test_the_doctor_finds_all_well(hpcdist, azure):
    found = findings(hpcdist, "--nodes", "2", "--gpus", "1")
    states = {name: one["state"] for name, one in found.items()}
    assert states.pop("directives") == states.pop("job") == "skip"
    assert states.pop("runs folder") == "pass"  # though it may be in /tmp: nobody else reads it
    assert set(states.values()) == {"pass"}
    assert found["workspace"]["detail"] == "you are known to ml-course in westeurope"
    expected = "gpu-cluster: up to 4 nodes Standard_NC24ads_A100_v4 (24 CPUs, 1 GPU)"
    assert found["compute"]["detail"] == expected


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        (("--gpus", "2"), "compute", "2 GPUs per node are asked for"),
        (("--nodes", "5"), "compute", "resources.nodes is 5, but the compute gpu-cluster has 4"),
    ],
)
def test_what_the_compute_does_not_have_fails(hpcdist, azure, words, name, said):
    found = findings(hpcdist, *words, code=1)
    assert found[name]["state"] == "FAIL"
    assert said in found[name]["detail"]


def test_an_environment_and_a_datastore_that_are_wanting_fail(hpcdist, azure):
    azure.datastores = ["another"]
    assert findings(hpcdist, code=1)["datastore"]["advice"] == "it has another"
    azure.environments = {"other": ["1"]}
    assert "environment" in findings(hpcdist, code=1)["environment"]["detail"]


def test_a_profile_for_each_compute_is_detected(hpcdist, azure):
    (hpcdist.folder / ".azureml").mkdir()
    (hpcdist.folder / ".azureml" / "config.json").write_text(json.dumps(NAMES))
    text = hpcdist("cluster", "detect", "--scheduler", "azure").stdout
    assert "  gpu-cluster:  # 4 nodes with 24 CPUs, 220 GB, 1 GPU\n" in text
    assert "  cpu-cluster:  # 2 nodes with 4 CPUs, 16 GB\n" in text
    (hpcdist.folder / "hpcdist.yaml").write_text(text)
    (shown,) = [json.loads(hpcdist("cluster", "show", "cpu-cluster", "--json").stdout)]
    assert shown["profile"]["azure"]["compute"] == "cpu-cluster"
    assert shown["profile"]["azure"]["workspace"] == "ml-course"
    assert hpcdist("render", "ddp").stdout.count("compute: ") == 1


def test_the_workspace_is_that_of_the_folder_or_of_az(tmp_path):
    project, home = tmp_path / "a" / "b", tmp_path / "home"
    (home / ".azure").mkdir(parents=True)
    project.mkdir(parents=True)
    with pytest.raises(SchedulerError, match="no workspace of Azure is named"):
        find_workspace(project, home)
    subscriptions = [{"id": "0", "isDefault": False}, {"id": SUBSCRIPTION, "isDefault": True}]
    profile = json.dumps({"subscriptions": subscriptions})
    (home / ".azure" / "azureProfile.json").write_text(profile, encoding="utf-8-sig")
    (home / ".azure" / "config").write_text("[defaults]\ngroup = course\nworkspace = ml-course\n")
    assert find_workspace(project, home) == FOUND
    (tmp_path / "a" / "config.json").write_text('{"name": "of another program"}')
    assert find_workspace(project, home) == FOUND
    (tmp_path / "a" / "config.json").write_text(json.dumps(NAMES | {"workspace_name": "other"}))
    assert find_workspace(project, home).workspace == "other"
