"""cifar10: pickled batches that nobody unpickles before they are known to be the published ones."""

import hashlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, download_data, find_data_set, load_data
from hpcdist.job.spec import Data

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
TRAP = b"cos\nsystem\n(S'touch trapped'\ntR."


def write_batches(root, num_images=4):
    """Batches as those of the data set, but small; returns the MD5 of each file."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    contents = {"batches.meta": {"label_names": [str(label) for label in range(10)]}}
    for name in BATCHES:
        pixels = random.integers(0, 256, (num_images, 3 * 32 * 32), dtype=np.uint8)
        contents[name] = {"data": pixels, "labels": [index % 10 for index in range(num_images)]}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
    return {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in contents}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A root with small batches whose checksums are those that are expected."""
    from torchvision.datasets import CIFAR10 as torchvision_class  # noqa: N811

    root = tmp_path / "data"
    md5 = write_batches(root)
    monkeypatch.setattr(torchvision_class, "train_list", [[n, md5[n]] for n in BATCHES[:5]])
    monkeypatch.setattr(torchvision_class, "test_list", [["test_batch", md5["test_batch"]]])
    meta = torchvision_class.meta | {"md5": md5["batches.meta"]}
    monkeypatch.setattr(torchvision_class, "meta", meta)
    return root


def test_the_published_files_have_60000_images_and_are_loaded_in_colour(published):
    data = Data(name="cifar10", root=str(published))
    sizes = check_data(data)
    assert (sizes.train, sizes.test) == (50_000, 10_000)
    loaded = load_data(data)
    assert loaded.image_shape == (3, 32, 32)
    assert (len(loaded.train), len(loaded.test)) == (20, 4)
    raw = pickle.loads((published / "cifar-10-batches-py/data_batch_1").read_bytes())["data"]
    pixels = loaded.train.images
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5
    assert (pixels.std((0, 2, 3)) - 1).abs().max() < 1e-5
    first = raw[0].reshape(3, 32, 32).astype(np.float32)
    for channel in range(3):  # normalised, so the same up to scale and offset
        correlation = np.corrcoef(first[channel].ravel(), pixels[0, channel].numpy().ravel())
        assert correlation[0, 1] > 0.99999


def test_a_file_that_is_another_is_refused_and_not_unpickled(published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = published / "cifar-10-batches-py/data_batch_3"
    path.write_bytes(TRAP)
    with pytest.raises(JobError, match=r"a file in .* is damaged, or not the published one"):
        load_data(Data(name="cifar10", root=str(published)))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("name", ["data_batch_1", "batches.meta"])
def test_a_missing_file_is_said_with_the_layout(published, name):
    (published / "cifar-10-batches-py" / name).unlink()
    data = Data(name="cifar10", root=str(published))
    assert not find_data_set(data).is_complete(data)
    with pytest.raises(JobError, match=f"{name} is missing") as error:
        check_data(data)
    assert "<root>/cifar-10-batches-py/" in error.value.hint
    with pytest.raises(JobError, match=r"data\.root is not set"):
        check_data(Data(name="cifar10"))


def test_what_is_missing_is_known_only_when_it_is_downloaded(published):
    data = Data(name="cifar10", root=str(published), download=True)
    download_data(data)  # all is there
    (published / "cifar-10-batches-py/test_batch").unlink()
    assert check_data(data) is None


def test_checking_imports_no_torch_and_no_numpy(tmp_path):
    write_batches(tmp_path)
    code = (
        "import sys; from hpcdist.data.catalog import check_data\n"
        "from hpcdist.job.spec import Data\n"
        f"check_data(Data(name='cifar10', root={str(tmp_path)!r}))\n"
        "print({'torch', 'numpy', 'torchvision'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
