"""Figures of loading, made by hand."""

import pytest

from hpcdist.bench.dataload.figures import DataloadCell, Setting

PARTS = {
    "read": 20e-6,
    "decode": 300e-6,
    "transform": 200e-6,
    "collate": 20e-6,
    "hand_over": 40e-6,
}


@pytest.fixture
def cell():
    """Make the figures of one way of loading: `cell(2, 33.0, transform="light", ranks=2)`."""

    def make(workers, time_ms, *, sd_ms=0.1, parts_s=PARTS, node=0, ranks=1, cpus=2.0, **options):
        fields = {
            key: options.pop(key) for key in list(options) if key in DataloadCell.__struct_fields__
        }
        setting = Setting(**{"batch_size": 64, "workers": workers, **options})
        return DataloadCell(
            **{
                "setting": setting,
                "node": node,
                "host": f"n{node}",
                "ranks": ranks,
                "cpus": cpus,
                "repeats": 5,
                "batches": 100,
                "mean_time_s": time_ms / 1e3,
                **dict.fromkeys(("p25_time_s", "median_time_s", "p75_time_s"), time_ms / 1e3),
                "sd_time_s": sd_ms / 1e3,
                "min_time_s": time_ms / 1e3,
                "images_per_s": ranks * setting.batch_size / time_ms * 1e3,
                "start_time_s": 0.05,
                "first_time_s": time_ms / 1e3,
                "first_files": "cold",
                "parts_s": parts_s,
                **fields,
            }
        )

    return make
