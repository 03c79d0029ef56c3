"""IDX files: right values from bytes written by hand, and each fault by name."""

import doctest
import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from eqx_mlp.data import _idx, load_idx_pair, read_idx
from eqx_mlp.data._idx import parse_idx, read_uncompressed

# IDX code and the letter that the struct module has for the same type.
CODES = {
    "uint8": (0x08, "B"),
    "int8": (0x09, "b"),
    "int16": (0x0B, "h"),
    "int32": (0x0C, "i"),
    "float32": (0x0D, "f"),
    "float64": (0x0E, "d"),
}


def header(code, *shape):
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)


def idx_bytes(array):
    # Packed by struct, one element at a time, so that NumPy does not check itself.
    code, letter = CODES[array.dtype.name]
    body = struct.pack(f">{array.size}{letter}", *array.ravel().tolist())
    return header(code, *array.shape) + body


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (0x08, "00 7f ff", np.array([0, 127, 255], "uint8")),
        (0x09, "00 7f ff", np.array([0, 127, -1], "int8")),
        (0x0B, "0001 0100 fffe", np.array([1, 256, -2], "int16")),
        (0x0C, "00000001 00010000 fffffffe", np.array([1, 65536, -2], "int32")),
        (0x0D, "3f800000 c0200000 00000000", np.array([1, -2.5, 0], "float32")),
        (0x0E, "3ff0000000000000 c004000000000000 00" + "00" * 7, [1, -2.5, 0]),
    ],
)
def test_each_element_type_is_read_as_big_endian(tmp_path, code, body, expected):
    path = write(tmp_path / "a", header(code, 3) + bytes.fromhex(body))
    array = read_idx(path)
    assert array.dtype == np.asarray(expected).dtype
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, expected)


def test_dimensions_are_in_c_order(tmp_path):
    path = write(tmp_path / "a", header(0x08, 2, 3) + bytes([1, 2, 3, 4, 5, 6]))
    np.testing.assert_array_equal(read_idx(path), [[1, 2, 3], [4, 5, 6]])


def test_the_array_may_be_written_to(tmp_path):
    array = read_idx(write(tmp_path / "a", header(0x08, 2) + b"\1\2"))
    array[0] = 9
    np.testing.assert_array_equal(array, [9, 2])


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_gzip_is_told_by_its_bytes_and_not_by_the_name(tmp_path, name, pack):
    path = write(tmp_path / name, pack(header(0x08, 2) + b"\1\2"))
    np.testing.assert_array_equal(read_idx(str(path)), [1, 2])


def test_a_dimension_of_zero_gives_an_empty_array(tmp_path):
    array = read_idx(write(tmp_path / "a", header(0x0D, 0, 28, 28)))
    assert array.shape == (0, 28, 28)
    assert array.dtype == np.float32


def test_64_dimensions_are_read(tmp_path):
    path = write(tmp_path / "a", header(0x08, *[1] * 64) + b"\7")
    assert read_idx(path).shape == (1,) * 64


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), zipped=st.booleans())
def test_what_is_written_is_read(tmp_path, data, zipped):
    dtype = data.draw(st.sampled_from(sorted(CODES)))
    shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
    array = data.draw(hnp.arrays(dtype, shapes))
    raw = idx_bytes(array)
    read = read_idx(write(tmp_path / "a", gzip.compress(raw) if zipped else raw))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)  # NaN equals NaN here
    np.testing.assert_array_equal(parse_idx(raw, "a"), array)


GOOD = header(0x08, 2, 2) + b"\1\2\3\4"
GZIPPED = gzip.compress(GOOD)
CORRUPT = GZIPPED[:12] + bytes([GZIPPED[12] ^ 0xFF]) + GZIPPED[13:]
WRONG_CHECKSUM = GZIPPED[:-8] + bytes([GZIPPED[-8] ^ 1]) + GZIPPED[-7:]

FAULTS = {
    "wrong magic": (b"\x89PNG\r\n", ["wrong magic", "00 00", "89 50 4e 47"]),
    "web page": (b"<!DOCTYPE html><html>", ["web page", "expected an IDX file"]),
    "page with BOM": (b"\xef\xbb\xbf \n<html>", ["web page"]),
    "XML answer": (b"<?xml version='1.0'?><Error>", ["XML"]),
    "zipped page": (gzip.compress(b"<html></html>"), ["web page"]),
    "element type": (header(0x0A, 1) + b"\0", ["0x0a", "0x08 uint8", "0x0e float64"]),
    "no dimensions": (header(0x08) + b"\0", ["declares 0", "1 to 64 dimensions"]),
    "65 dimensions": (header(0x08, *[1] * 65) + b"\0", ["declares 65"]),
    "empty": (b"", ["truncated header", "at least 4 bytes", "got 0"]),
    "one byte": (b"\0", ["truncated header", "got 1"]),
    "half a magic": (b"\0\0\x08", ["truncated header", "got 3"]),
    "half a header": (GOOD[:9], ["truncated header", "12 bytes", "got 9"]),
    "no body": (GOOD[:12], ["truncated", "expected 16 bytes", "got 12 bytes"]),
    "short body": (GOOD[:-1], ["truncated", "expected 16 bytes", "got 15 bytes"]),
    "long body": (GOOD + b"\0", ["over-long", "expected 16 bytes", "(2, 2)"]),
    "half an int16": (header(0x0B, 1) + b"\0", ["expected 10 bytes", "got 9 bytes"]),
    "zipped short body": (gzip.compress(GOOD[:-1]), ["truncated IDX", "got 15 bytes"]),
    "zipped long body": (gzip.compress(GOOD + b"\0"), ["over-long"]),
    "absurd size": (header(0x0E, *[2**32 - 1] * 3), ["fits in memory"]),
    "over 4 GiB": (header(0x0C, 2**31), ["declares 8589934600"]),
    # 2**32 elements come out as 0 where sizes are 32-bit integers.
    "32-bit overflow": (header(0x08, 2**16, 2**16), ["declares 4294967308"]),
    # As do 2**64 where they are 64-bit ones.
    "64-bit overflow": (header(0x08, 2**31, 2**31, 4), ["fits in memory"]),
    "empty but absurd": (header(0x08, 0, *[2**32 - 1] * 3), ["fits in memory"]),
    "only gzip's magic": (b"\x1f\x8b", ["gzip", "truncated"]),
    "truncated gzip": (GZIPPED[:-9], ["gzip", "truncated"]),
    "gzip without trailer": (GZIPPED[:-8], ["gzip", "truncated"]),
    "corrupt gzip": (CORRUPT, ["gzip", "corrupt"]),
    "wrong checksum": (WRONG_CHECKSUM, ["gzip", "corrupt", "CRC"]),
    "bytes after gzip": (GZIPPED + b"garbage", ["gzip", "followed by other bytes"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_says_which_file_what_is_wrong_and_the_mend(tmp_path, name):
    content, words = FAULTS[name]
    path = write(tmp_path / "some file", content)
    with pytest.raises(ValueError, match=r"expected") as caught:
        read_idx(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message
    assert "download" in message


def test_a_missing_file_stays_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_idx(tmp_path / "nowhere")


def test_parse_idx_names_its_source():
    with pytest.raises(ValueError, match=r"^the mirror: truncated IDX"):
        parse_idx(GOOD[:-1], "the mirror")


def test_max_bytes_is_the_largest_size_accepted(tmp_path):
    path = write(tmp_path / "a", GOOD)
    assert read_idx(path, max_bytes=16).shape == (2, 2)
    with pytest.raises(ValueError, match=r"at most 15 bytes.* 16 .*larger max_bytes"):
        read_idx(path, max_bytes=15)


def peak_of(call, *args):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected"):
            call(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_decompression_bomb_is_not_unpacked(tmp_path):
    bomb = gzip.compress(header(0x08, 10) + bytes(32 * 2**20))
    path = write(tmp_path / "bomb.gz", bomb)
    assert peak_of(read_idx, path) < 8 * 2**20
    assert peak_of(read_uncompressed, path, 2**20) < 8 * 2**20


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_nothing_is_allocated_for_a_declared_size_that_is_not_there(tmp_path, pack):
    path = write(tmp_path / "a", pack(header(0x08, 2**30) + b"\1"))
    assert peak_of(read_idx, path) < 8 * 2**20


def test_a_body_longer_than_one_read_comes_whole(tmp_path):
    array = np.arange(3 * 2**20 + 5).astype("uint8")
    raw = header(0x08, array.size) + array.tobytes()
    for pack in (bytes, lambda data: gzip.compress(data, 1)):
        np.testing.assert_array_equal(read_idx(write(tmp_path / "a", pack(raw))), array)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("extra", "fault"), [(1, "over-long"), (-1, "truncated")])
def test_one_byte_too_many_or_too_few_is_seen_past_the_first_read(
    tmp_path, pack, extra, fault
):
    raw = header(0x08, 5000) + bytes(5000 + extra)
    with pytest.raises(ValueError, match=f"{fault} IDX file"):
        read_idx(write(tmp_path / "a", pack(raw)))


def test_read_uncompressed_takes_exactly_its_limit(tmp_path):
    path = write(tmp_path / "a.gz", GZIPPED)
    assert read_uncompressed(path, 16) == GOOD
    with pytest.raises(ValueError, match="at most 15 bytes"):
        read_uncompressed(path, 15)


def test_a_pair_has_the_images_as_stored_and_int32_labels(tmp_path):
    images = write(tmp_path / "x", header(0x0B, 2, 1, 2) + bytes(range(8)))
    labels = write(tmp_path / "y", header(0x08, 2) + b"\x07\xff")
    x, y = load_idx_pair(images, labels)
    np.testing.assert_array_equal(x, [[[0x0001, 0x0203]], [[0x0405, 0x0607]]])
    assert x.dtype == np.int16
    np.testing.assert_array_equal(y, [7, 255])
    assert y.dtype == np.int32


def test_counts_that_disagree_name_both_files_and_both_counts(tmp_path):
    images = write(tmp_path / "x", header(0x08, 3, 1) + b"\1\2\3")
    labels = write(tmp_path / "y", header(0x08, 2) + b"\1\2")
    with pytest.raises(ValueError, match="one label an image") as caught:
        load_idx_pair(images, labels)
    assert f"3 images in {images}" in str(caught.value)
    assert f"2 labels in {labels}" in str(caught.value)


@pytest.mark.parametrize(
    "labels", [header(0x08, 2, 1) + b"\1\2", header(0x0D, 2) + bytes(8)]
)
def test_labels_are_one_integer_an_example(tmp_path, labels):
    images = write(tmp_path / "x", header(0x08, 2, 1) + b"\1\2")
    with pytest.raises(ValueError, match=r"integers of shape.*swapped") as caught:
        load_idx_pair(images, write(tmp_path / "y", labels))
    assert str(caught.value).startswith(str(tmp_path / "y"))


def test_the_examples_in_the_docstrings_run():
    results = doctest.testmod(_idx)
    assert results.attempted >= 8
    assert results.failed == 0
