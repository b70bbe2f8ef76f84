"""AMD's GPUs, as KFD and amdgpu show them in sysfs. The properties are those of a real MI100
(arcturus, as in the tests of the package rocmi)."""

import pynvml
import pytest

from hpcdist.machine import gpus
from hpcdist.machine.gpus import list_gpus, show_only

CPU = "cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\ndrm_render_minor 0\n"
GPU = """\
simd_count 480
gfx_target_version 90008
vendor_id 4098
drm_render_minor {minor}
unique_id {unique_id}
"""
UUIDS = ["GPU-6c62a3758b84fdc7", "GPU-6c62a3758b84fdc8", "AMD-2"]


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Three GPUs behind the nodes of two processors; no driver of NVIDIA's."""
    nodes = tmp_path / "kfd" / "topology" / "nodes"
    write(nodes, {"0/properties": CPU, "1/properties": CPU})
    for place, unique_id in enumerate((7809984429061111239, 7809984429061111240, 0)):
        text = GPU.format(minor=128 + place, unique_id=unique_id)
        write(nodes, {f"{place + 2}/properties": text})
        device = {
            "device": "0x738c",
            "mem_info_vram_total": 34342961152,
            "mem_info_vram_used": 11452416 + place * 2**30,
        }
        named = {"product_name": "AMD Instinct MI100"} if place else {}
        write(tmp_path / "drm" / f"renderD{128 + place}" / "device", device | named)
    (tmp_path / "device").touch()
    for name in ("KFD", "DRM", "DEVICE"):
        monkeypatch.setattr(gpus, name, tmp_path / name.lower())
    monkeypatch.setattr(gpus, "torch_has_rocm", lambda: True)

    def no_driver():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_gpus_have_names_and_memory():
    found = list_gpus()
    assert [gpu.uuid for gpu in found] == gpus.visible_uuids() == UUIDS
    assert [gpu.name for gpu in found] == ["AMD 0x738c", *["AMD Instinct MI100"] * 2]
    assert found[0].total_bytes == 34342961152
    assert [gpu.is_idle for gpu in found] == [True, False, False]  # somebody has the memory


@pytest.mark.parametrize(
    ("variables", "places"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, [1]),
    ],
)
def test_the_variables_of_rocm_are_honoured_as_rocm_does(monkeypatch, variables, places):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [gpu.uuid for gpu in list_gpus()] == [UUIDS[place] for place in places]


def test_ranks_are_shown_what_the_plan_chose():
    shown = show_only([UUIDS[1], UUIDS[2]])
    hip = {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert shown == {"ROCR_VISIBLE_DEVICES": f"{UUIDS[1]},2"} | hip
    assert [gpu.uuid for gpu in gpus.list_amd_gpus(shown)] == UUIDS[1:]
    nvidia = "GPU-1d4b7c2e-8d3e-6f7a-b5c9-2e4d8a1f6c3b"
    assert show_only([nvidia]) == {"CUDA_VISIBLE_DEVICES": nvidia}


def test_gpus_that_torch_cannot_use_are_none_and_the_reason_is_known(monkeypatch):
    monkeypatch.setattr(gpus, "torch_has_rocm", lambda: False)
    assert list_gpus() == []
    assert gpus.why_not_used() == "an AMD GPU is here, but torch is built without ROCm"
