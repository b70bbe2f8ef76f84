import subprocess
import sys

import pytest

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, find_data_set, load_data
from hpcdist.job.spec import Data


def test_digits_has_1797_images_in_two_parts_that_show_each_digit_alike():
    sizes = check_data(Data())
    digits = load_data(Data())
    assert (len(digits.train), len(digits.test)) == (sizes.train, sizes.test)
    assert sizes.train + sizes.test == 1797
    assert (digits.image_shape, digits.num_classes) == ((1, 8, 8), 10)
    shares = digits.test.labels.bincount() / len(digits.test)
    assert shares.min() > 0.09
    assert abs(float(digits.train.images.mean())) < 1e-3
    assert abs(float(digits.train.images.std()) - 1) < 1e-3
    assert digits.train.images.equal(load_data(Data()).train.images)
    train, test = ({*map(bytes, part.images.numpy())} for part in (digits.train, digits.test))
    assert not train & test


def test_only_the_first_samples_are_used_where_the_job_says_so():
    data = Data(train_samples=100, test_samples=7)
    sizes, digits = check_data(data), load_data(data)
    assert (len(digits.train), len(digits.test)) == (sizes.train, sizes.test) == (100, 7)
    assert len(digits.train.labels.unique()) == 10


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_are_checked_and_loaded(write_idx_data, name):
    root = write_idx_data(name)
    data = Data(name=name, root=str(root))
    sizes = check_data(data)
    assert (sizes.train, sizes.test) == (40, 12)
    loaded = load_data(data)
    assert loaded.train.images.shape == (40, 1, 28, 28)
    assert loaded.test.labels.tolist() == [index % 10 for index in range(12)]


def test_checking_data_imports_no_torch_no_numpy_and_no_pillow(write_idx_data):
    root = write_idx_data()
    (root / "ant").mkdir()
    for name in "abc":
        (root / "ant" / f"{name}.jpg").touch()
    given = [{}, {"name": "mnist"}, {"name": "faces"}, {"name": "image_folder"}]
    code = (
        "import sys; from hpcdist.data.catalog import check_data\n"
        "from hpcdist.job.spec import Data\n"
        f"for keys in {given}: check_data(Data(root={str(root)!r} if keys else None, **keys))\n"
        "print({'torch', 'numpy', 'sklearn', 'torchvision', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_missing_root_is_said_with_the_layout_that_is_wanted(tmp_path):
    with pytest.raises(JobError, match=r"data\.root is not set, and mnist is not bundled") as none:
        check_data(Data(name="mnist"))
    assert "<root>/MNIST/raw/" in none.value.hint
    with pytest.raises(JobError, match="nowhere': there is no folder") as missing:
        check_data(Data(name="mnist", root=str(tmp_path / "nowhere")))
    assert missing.value.message.startswith("data.root is ")
    with pytest.raises(JobError, match="train-images-idx3-ubyte cannot be read: No such file"):
        check_data(Data(name="mnist", root=str(tmp_path)))


GARBAGE = {
    "html": b"<html>not found</html>",
    "short": b"\x00\x00\x08\x03\x00\x00\x00\x28\x00\x00\x00\x1c\x00\x00\x00\x1c\x00",
    "labels": b"\x00\x00\x08\x01\x00\x00\x00\x0c" + bytes(12),
    "more than memory": b"\x00\x00\x08\x03\x00\xff\xff\xff\x00\x00\x00\x1c\x00\x00\x00\x1c",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_place_of_images_is_found(write_idx_data, content):
    root = write_idx_data()
    path = root / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(JobError) as error:
        check_data(Data(name="mnist", root=str(root)))
    wrong = f"{path} is not the IDX file it must be: {len(content):,} bytes"
    assert wrong in error.value.message


@pytest.mark.parametrize("side", [0, 32])
def test_test_images_of_another_size_than_those_to_train_with_are_found(write_idx_data, side):
    root = write_idx_data()
    header = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (12, side, side))
    path = root / "MNIST/raw/t10k-images-idx3-ubyte"
    path.write_bytes(header + bytes(12 * side * side))
    with pytest.raises(JobError, match="differ in their numbers of pixels"):
        check_data(Data(name="mnist", root=str(root)))


def test_labels_that_do_not_fit_the_images_are_found(write_idx_data):
    root = write_idx_data()
    path = root / "MNIST/raw/t10k-labels-idx1-ubyte"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"\x0a")
    with pytest.raises(JobError, match="has the label 10, must be 0 to 9"):
        check_data(Data(name="mnist", root=str(root)))
    path.write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x05" + bytes(5))
    with pytest.raises(JobError, match="has 5 labels for 12 images"):
        check_data(Data(name="mnist", root=str(root)))


def test_what_no_data_set_is_or_takes_is_refused():
    with pytest.raises(JobError, match=r"data\.name is 'fashionmnist'") as error:
        check_data(Data(name="fashionmnist"))
    assert error.value.hint.startswith("the known ones are: fashion_mnist")
    with pytest.raises(JobError, match="digits is held in memory") as error:
        check_data(Data(transform="light"))
    assert "image_folder" in error.value.hint


def test_nothing_is_downloaded_where_the_files_are_there(write_idx_data):
    root = write_idx_data()
    before = sorted(root.rglob("*"))
    data = Data(name="mnist", root=str(root), download=True)
    find_data_set(data).prepare(data)
    assert sorted(root.rglob("*")) == before


def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    data = Data(name="mnist", root=str(tmp_path / "data"), download=True)
    assert check_data(data).train == 60_000
    with pytest.raises(JobError, match=r"data\.download: MNIST cannot be fetched: .*refused"):
        find_data_set(data).prepare(data)
