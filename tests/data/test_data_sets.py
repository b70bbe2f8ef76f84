import subprocess
import sys

import pytest

from hpcdist.base.errors import JobError
from hpcdist.data import in_memory
from hpcdist.data.catalog import check_data, find_data_set, load_data
from hpcdist.data.trial import try_apart
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
    first = Data(train_samples=100, test_samples=7)
    sizes, digits = check_data(first), load_data(first)
    assert (len(digits.train), len(digits.test)) == (sizes.train, sizes.test) == (100, 7)


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


def header(magic, *sizes):
    """The beginning of an IDX file."""
    return magic.to_bytes(4, "big") + b"".join(size.to_bytes(4, "big") for size in sizes)


IMAGES, LABELS, TEST = "train-images-idx3", "t10k-labels-idx1", "t10k-images-idx3"
REFUSED = {
    "html": (IMAGES, b"<html>not found</html>", "is not the IDX file it must be: 22 bytes"),
    "more than memory": (IMAGES, header(0x803, 2**24, 28, 28), "is not the IDX file it must be"),
    "other pixels": (TEST, header(0x803, 12, 32, 32) + bytes(12288), "differ in their numbers of"),
    "a label of 10": (LABELS, header(0x801, 12) + b"\x0a" * 12, "the label 10, must be 0 to 9"),
    "few labels": (LABELS, header(0x801, 5) + bytes(5), "has 5 labels for 12 images"),
    "no file": (IMAGES, None, f"{IMAGES}-ubyte cannot be read: No such file"),
}


@pytest.mark.parametrize(("file", "content", "said"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_no_data_set_are_refused_by_name(write_idx_data, file, content, said):
    root = write_idx_data()
    path = root / f"MNIST/raw/{file}-ubyte"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(JobError, match=said) as error:
        check_data(Data(name="mnist", root=str(root)))
    assert str(path) in error.value.message or "differ" in said


@pytest.mark.parametrize(
    ("keys", "said", "hint"),
    [
        (
            {"name": "mnist"},
            r"data\.root is not set, and mnist is not bundled",
            "<root>/MNIST/raw/",
        ),
        ({"name": "mnist", "root": "nowhere"}, "data.root is .*nowhere': there is no folder", ""),
        ({"name": "fashionmnist"}, r"data\.name is 'fashionmnist'", "ones are: fashion_mnist"),
        ({"transform": "light"}, "digits is held in memory", "image_folder"),
    ],
)
def test_what_no_data_set_is_or_takes_is_refused(keys, said, hint):
    with pytest.raises(JobError, match=said) as error:
        check_data(Data(**keys))
    assert hint in (error.value.hint or "")


def test_nothing_is_downloaded_where_the_files_are_there_and_a_failed_download_says_why(
    write_idx_data, tmp_path, monkeypatch
):
    fails = ["sh", "-c", "echo reading; echo 'URLError: connection refused' >&2; exit 1"]
    monkeypatch.setattr(in_memory, "python_command", lambda *_: fails)
    data = Data(name="mnist", root=str(write_idx_data()), download=True)
    find_data_set(data).prepare(data)
    data = Data(name="mnist", root=str(tmp_path / "other"), download=True)
    assert check_data(data).train == 60_000
    with pytest.raises(JobError, match=r"data\.download: MNIST cannot be fetched: .*refused"):
        find_data_set(data).prepare(data)


def test_what_a_user_names_is_tried_without_modules_of_the_working_directory(tmp_path, monkeypatch):
    for planted in ("json.py", "msgspec.py"):
        (tmp_path / planted).write_text("open('attacked', 'w')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match="there is no job called 'nowhere'") as error:
        try_apart("hpcdist.job.load:load_job", "nowhere")
    assert "jobs are" in error.value.hint
    assert not (tmp_path / "attacked").exists()
