"""The doctor on Azure."""

import json


def findings(hpcdist, *words, code=0):
    found = json.loads(hpcdist("doctor", "--no-job", "--json", *words, code=code).stdout)
    return {one["name"]: one for one in found}


def test_the_doctor_finds_all_well(hpcdist, azure):
    found = findings(hpcdist, "--nodes", "2", "--gpus", "1")
    states = {name: one["state"] for name, one in found.items()}
    assert states.pop("job") == "skip"
    assert states.pop("runs folder") == "pass"  # though it may be in /tmp: nobody else reads it
    assert set(states.values()) == {"pass"}
    expected = "ml-course knows you, and has gpu-cluster: nodes Standard_NC24ads_A100_v4"
    assert found["workspace"]["detail"] == expected


def test_more_nodes_than_the_compute_has_fail(hpcdist, azure):
    found = findings(hpcdist, "--nodes", "5", code=1)["workspace"]
    assert found["state"] == "FAIL"
    assert "resources.nodes is 5, but the compute gpu-cluster has 4" in found["detail"]
