"""Small data sets of image files."""

import pytest
from pictures import encoded, picture

from hpcdist.job.spec import Data


@pytest.fixture
def write_classes(tmp_path):
    """Write so many JPEG files per class, named as in LFW; returns the folder."""

    def write(counts, folder="lfw"):
        content = encoded(picture(1, (8, 8)))
        for name, count in counts.items():
            (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
            for number in range(1, count + 1):
                stem = f"{name.rpartition('/')[2]}_{number:04d}"
                (tmp_path / folder / name / f"{stem}.jpg").write_bytes(content)
        return tmp_path / folder

    return write


@pytest.fixture
def faces_at():
    """The section `data` of a job with these faces."""
    return lambda root, **keys: Data(name="faces", root=str(root), **keys)


@pytest.fixture
def folder_at():
    """The section `data` of a job with this folder of classes."""
    return lambda root, **keys: Data(name="image_folder", root=str(root), **keys)
