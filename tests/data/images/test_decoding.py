import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from pictures import encoded, picture
from PIL import EpsImagePlugin, Image

from hpcdist.data.images import decoding
from hpcdist.data.images.decoding import UnreadableImageError, check_files, decode
from hpcdist.data.splits import ImageFiles, ImageParts


def turned():
    metadata = Image.Exif()
    metadata[0x112] = 6
    return metadata


IMAGES = {
    "baseline": encoded(picture(3)),
    "progressive": encoded(picture(3, (33, 17)), progressive=True),
    "halved colour": encoded(picture(3, (33, 17)), subsampling=2, quality=50),
    "turned by its metadata": encoded(picture(3), exif=turned()),
    "grayscale": encoded(picture(1, mode="L")),
    "CMYK": encoded(picture(1, mode="CMYK")),
    "PNG": encoded(picture(1), "PNG"),
    "PNG with a palette": encoded(picture(1, mode="P"), "PNG"),
    "GIF": encoded(picture(1), "GIF"),
    "JPEG with bytes after its end": encoded(picture(1)) + bytes(100),
}


def of_pil(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("how", ["exact", "fast", "without simplejpeg"])
@pytest.mark.parametrize("content", IMAGES.values(), ids=IMAGES)
def test_the_pixels_are_those_of_pil(monkeypatch, how, content):
    if how == "without simplejpeg":
        monkeypatch.setattr(decoding, "simplejpeg", None)
    expected, is_fast = of_pil(content), how == "fast"
    out = np.empty_like(expected)
    size = expected.shape[1], expected.shape[0]
    assert np.array_equal(decode(content, size, is_fast=is_fast, out=out), expected)
    assert np.array_equal(decode(content, None, is_fast=is_fast), expected)


def test_a_size_scales_as_pil_does():
    content = encoded(picture(3, (90, 70)))
    expected = Image.fromarray(of_pil(content)).resize((24, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(decode(content, (24, 24)), np.asarray(expected))


def test_fast_pixels_deviate_little_where_pictures_are_made_smaller():
    content = encoded(picture(3, (256, 256)), quality=90)
    exact, fast = (
        decode(content, (48, 48), is_fast=is_fast).astype(int) for is_fast in (False, True)
    )
    difference = abs(exact - fast)
    assert 0 < difference.mean() < 3
    assert difference.max() < 40


def bomb():
    """A PNG of 100 megapixels in a few KB of header: its data are never looked at."""
    header = struct.pack(">2I5B", 10_000, 10_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
BAD = {
    "empty": (b"", "is empty"),
    "text": (b"not a picture", "is not an image"),
    "truncated": (encoded(picture(1))[:-600], "is damaged"),
    "100 megapixels": (bomb(), "is too large"),
}


def test_a_postscript_document_that_is_called_jpg_starts_no_ghostscript(tmp_path, monkeypatch):
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # looked for anew
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(EPS)
    for is_fast in (False, True):
        with pytest.raises(UnreadableImageError):
            decode(EPS, None, is_fast=is_fast)
    files = ImageFiles(root=tmp_path, paths=[photo.name], labels=[0], classes=("a",))
    problems = check_files(ImageParts(train=files, test=replace(files, paths=[], labels=[])))
    assert problems[str(photo)].startswith("is not an image")
    assert not (tmp_path / "started").exists()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("is_fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize("kind", BAD)
def test_what_shows_no_picture_is_said_in_the_same_words(is_fast, kind):
    content, words = BAD[kind]
    with pytest.raises(UnreadableImageError, match=words):
        decode(content, (16, 16), is_fast=is_fast, out=np.empty((16, 16, 3), np.uint8))
