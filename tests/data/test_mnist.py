"""MNIST: where it is looked for, and that nothing with a wrong hash gets in.

Most tests put a tiny data set with hashes of its own in place of MNIST's, and a server
on this machine in place of the mirrors. None reads or writes the real cache.
"""

import doctest
import gc
import gzip
import hashlib
import logging
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from eqx_mlp.data import Split, _mnist, mnist

TRAIN_X, TRAIN_Y, TEST_X, TEST_Y = NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(array):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def images(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)


ARRAYS = {
    TRAIN_X: images(3, 0),
    TRAIN_Y: np.array([4, 0, 9], np.uint8),
    TEST_X: images(2, 1),
    TEST_Y: np.array([8, 1], np.uint8),
}
RAW = {name: idx(array) for name, array in ARRAYS.items()}
OTHER = idx(images(3, 2))  # as well formed as the training images


def is_tiny(split):
    assert isinstance(split, Split)
    read = dict(zip(NAMES, (*split.train, *split.test), strict=True))
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
    assert [read[name].dtype for name in NAMES] == ["uint8", "int32"] * 2
    return True


@pytest.fixture(autouse=True)
def tiny(request, monkeypatch, tmp_path, caplog):
    """The tiny data set, in none of the places yet; no mirror; logs recorded."""
    caplog.set_level(logging.INFO, "eqx_mlp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("EQX_MLP_DATA", raising=False)
    monkeypatch.setattr(_mnist, "MIRRORS", ())
    if "real_files" not in request.fixturenames:
        digests = {n: hashlib.sha256(raw).hexdigest() for n, raw in RAW.items()}
        monkeypatch.setattr(_mnist, "SHA256", digests)
        monkeypatch.setattr(_mnist, "BESIDE_EXAMPLES", tmp_path / "clone")


@pytest.fixture
def real_files():
    if not _mnist.BESIDE_EXAMPLES.is_dir():
        pytest.skip("MNIST's files come with a clone only")
    return _mnist.BESIDE_EXAMPLES


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "eqx_mlp" / "mnist"


@pytest.fixture
def no_pooch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)


def fill(folder, pack=gzip.compress, rename="{}.gz".format):
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / rename(name)).write_bytes(pack(RAW[name]))
    return folder


class Mirrors:
    """Two mirrors, `a` and `b`, on one server; `answers[url path]` overrides a file."""

    def __init__(self):
        self.requests, self.answers = [], {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                answer = outer.answers.get(self.path, outer.good)
                answer(self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.server.server_port}"
        self.urls = (f"{self.root}/a/", f"{self.root}/b/")
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    @staticmethod
    def body(path):
        return gzip.compress(RAW[path.rsplit("/", 1)[1].removesuffix(".gz")])

    def good(self, handler):
        reply(self.body(handler.path))(handler)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def reply(body, status=200, length=None):
    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(length or len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def mirrors(monkeypatch):
    served = Mirrors()
    monkeypatch.setattr(_mnist, "MIRRORS", served.urls)
    yield served
    served.close()
    gc.collect()  # a socket left open would warn here, in the test that left it


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


ALL_GZ = sorted(f"{name}.gz" for name in NAMES)


def test_the_files_in_the_clone_are_mnist(real_files, no_pooch):
    (x, y), (test_x, test_y) = mnist(real_files)
    assert (x.shape, x.dtype) == ((60000, 28, 28), np.uint8)
    assert (y.shape, y.dtype) == ((60000,), np.int32)
    assert (test_x.shape, test_x.dtype) == ((10000, 28, 28), np.uint8)
    assert (test_y.shape, test_y.dtype) == ((10000,), np.int32)
    assert (y[0], test_y[0]) == (5, 7)
    # Both are in the literature: 0.1307 is the mean that MNIST is normalised with.
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(y), counts)
    assert x.mean() == pytest.approx(33.318, abs=5e-4)
    assert x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_the_examples_in_the_docstrings_run(real_files):
    results = doctest.testmod(_mnist)
    assert results.attempted >= 3
    assert results.failed == 0


def test_the_cache_is_where_pooch_would_put_it(monkeypatch, cache):
    import pooch

    assert _mnist._cache_folder() == pooch.os_cache("eqx_mlp") / "mnist" == cache
    for unset in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setattr(sys, "platform", "linux")
        assert _mnist._cache_folder() == Path.home() / ".cache/eqx_mlp/mnist"


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize(
    ("pack", "suffix"),
    [(gzip.compress, ".gz"), (bytes, ""), (bytes, ".gz"), (gzip.compress, "")],
)
def test_a_given_folder_is_read_under_every_name(
    tmp_path, caplog, no_pooch, dotted, pack, suffix
):
    def rename(name):
        return (name.replace("-idx", ".idx") if dotted else name) + suffix

    folder = fill(tmp_path / "given", pack, rename)
    assert is_tiny(mnist(folder))
    assert is_tiny(mnist(str(folder)))
    assert f"read from {folder} (path)" in caplog.text


def test_a_home_folder_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    fill(tmp_path / "given")
    assert is_tiny(mnist("~/given"))


def test_the_environment_names_a_folder(monkeypatch, tmp_path, caplog, no_pooch):
    folder = fill(tmp_path / "environment")
    monkeypatch.setenv("EQX_MLP_DATA", str(folder))
    assert is_tiny(mnist())
    assert f"read from {folder} ($EQX_MLP_DATA)" in caplog.text


def test_the_path_comes_before_the_environment(monkeypatch, tmp_path, caplog):
    folder = fill(tmp_path / "given")
    monkeypatch.setenv("EQX_MLP_DATA", str(tmp_path / "wrong"))
    assert is_tiny(mnist(folder))
    assert f"read from {folder} (path)" in caplog.text


def test_an_empty_environment_variable_counts_as_unset(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("EQX_MLP_DATA", "")
    fill(tmp_path / "clone")
    assert is_tiny(mnist())
    assert "beside the examples" in caplog.text


@pytest.mark.parametrize("by", ["path", "$EQX_MLP_DATA"])
def test_a_given_folder_that_lacks_a_file_is_an_error_though_others_have_it(
    monkeypatch, tmp_path, cache, mirrors, by
):
    fill(tmp_path / "clone")
    fill(cache)
    folder = fill(tmp_path / "given")
    (folder / f"{TEST_X}.gz").unlink()
    if by != "path":
        monkeypatch.setenv("EQX_MLP_DATA", str(folder))
    with pytest.raises(ValueError, match="lacks some") as caught:
        mnist(folder if by == "path" else None)
    assert isinstance(caught.value, FileNotFoundError)
    message = str(caught.value)
    assert message.startswith(f"{by}: ")
    assert str(folder) in message
    for name in (TEST_X, "t10k-images.idx3-ubyte"):
        assert f"{name}.gz or {name}" in message
    assert TRAIN_X not in message
    assert mirrors.requests == []


@pytest.mark.parametrize("by", ["path", "$EQX_MLP_DATA"])
@pytest.mark.parametrize("kind", ["nothing", "file"])
def test_a_given_path_that_is_no_folder_is_an_error(monkeypatch, tmp_path, by, kind):
    fill(tmp_path / "clone")
    path = tmp_path / "given"
    if kind == "file":
        path.write_bytes(RAW[TRAIN_X])
    if by != "path":
        monkeypatch.setenv("EQX_MLP_DATA", str(path))
    with pytest.raises(FileNotFoundError, match="is not a folder") as caught:
        mnist(path if by == "path" else None)
    message = str(caught.value)
    assert message.startswith(f"{by}: ")
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (OTHER, "an IDX file with other contents"),
        (RAW[TRAIN_X] + b"\0", "over-long"),
        (RAW[TRAIN_X][:-1], "truncated"),
        (b"", "truncated header"),
        (b"<html>not found</html>", "web page"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_wrong_file_in_a_given_folder_is_an_error_with_both_hashes(
    tmp_path, mirrors, content, reason, pack
):
    folder = fill(tmp_path / "given")
    path = folder / f"{TRAIN_X}.gz"
    path.write_bytes(pack(content))
    fill(tmp_path / "clone")
    with pytest.raises(ValueError, match=reason) as caught:
        mnist(folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert f"expected SHA-256 {hashlib.sha256(RAW[TRAIN_X]).hexdigest()}" in message
    assert f"found {hashlib.sha256(content).hexdigest()}" in message
    assert not isinstance(caught.value, FileNotFoundError)
    assert path.read_bytes() == pack(content)  # a user's file is left alone
    assert mirrors.requests == []


def test_a_truncated_gzip_in_a_given_folder_is_an_error(tmp_path):
    folder = fill(tmp_path / "given")
    path = folder / f"{TRAIN_X}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="truncated") as caught:
        mnist(folder)
    assert str(path) in str(caught.value)


def test_a_file_larger_than_any_of_mnist_is_not_unpacked(monkeypatch, tmp_path):
    monkeypatch.setattr(_mnist, "MAX_BYTES", 3 * 784 + 15)
    with pytest.raises(ValueError, match="at most 2367 bytes uncompressed"):
        mnist(fill(tmp_path / "given"))


def test_the_clone_comes_before_the_cache(tmp_path, cache, caplog, no_pooch):
    fill(tmp_path / "clone")
    fill(cache)
    assert is_tiny(mnist())
    assert f"read from {tmp_path / 'clone'} (beside the examples)" in caplog.text


def test_bad_files_in_the_clone_are_passed_over_and_said(
    tmp_path, cache, caplog, no_pooch
):
    clone = fill(tmp_path / "clone")
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    (clone / f"{TEST_Y}.gz").write_bytes(pointer)
    fill(cache)
    assert is_tiny(mnist())
    assert f"read from the cache {cache}" in caplog.text
    warning = next(r for r in caplog.records if r.levelno == logging.WARNING)
    assert str(clone / f"{TEST_Y}.gz") in warning.getMessage()
    assert (clone / f"{TEST_Y}.gz").read_bytes() == pointer


def test_a_whole_cache_needs_neither_network_nor_pooch(cache, caplog, no_pooch):
    # The header of this .gz differs from any mirror's: another time, another level.
    fill(cache, lambda raw: gzip.compress(raw, 1, mtime=12345))
    assert is_tiny(mnist())
    assert f"read from the cache {cache}" in caplog.text


def test_a_download_fills_the_cache_and_the_next_call_reads_it(cache, mirrors, caplog):
    assert is_tiny(mnist())
    assert names_in(cache) == ALL_GZ
    assert mirrors.requests == [f"/a/{name}.gz" for name in NAMES]
    assert f"downloaded from {mirrors.urls[0]} into the cache {cache}" in caplog.text
    assert is_tiny(mnist())
    assert len(mirrors.requests) == 4
    assert caplog.messages[-1] == f"MNIST: read from the cache {cache}"


def test_a_mirror_may_send_the_file_uncompressed(cache, mirrors):
    mirrors.answers[f"/a/{TRAIN_X}.gz"] = reply(RAW[TRAIN_X])
    assert is_tiny(mnist())
    assert is_tiny(mnist())
    assert len(mirrors.requests) == 4


GOOD_GZ = gzip.compress(RAW[TRAIN_X])
BAD_ANSWERS = {
    "HTML with 200": reply(b"<!DOCTYPE html><html>sign in</html>"),
    "404": reply(b"no such file", 404),
    "500": reply(GOOD_GZ, 500),
    "empty": reply(b""),
    "wrong hash": reply(gzip.compress(OTHER)),
    "truncated gzip": reply(GOOD_GZ[:-9]),
    "bytes after gzip": reply(GOOD_GZ + b"garbage"),
    "connection lost": reply(GOOD_GZ[:500], length=len(GOOD_GZ)),
    "endless": reply(bytes(20000)),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_mirror_that_answers_wrongly_gives_way_to_the_next(
    monkeypatch, cache, mirrors, name
):
    monkeypatch.setattr(_mnist, "MAX_BYTES", 10000)
    mirrors.answers[f"/a/{TRAIN_X}.gz"] = BAD_ANSWERS[name]
    assert is_tiny(mnist())
    assert names_in(cache) == ALL_GZ
    # The other files begin with the mirror that worked.
    first = [f"/a/{TRAIN_X}.gz", f"/b/{TRAIN_X}.gz"]
    assert mirrors.requests == first + [f"/b/{name}.gz" for name in NAMES[1:]]
    assert is_tiny(mnist())  # what is in the cache is whole


def test_a_mirror_that_cannot_be_reached_gives_way_to_the_next(monkeypatch, mirrors):
    monkeypatch.setattr(
        _mnist, "MIRRORS", ("http://127.0.0.1:9/mnist", mirrors.urls[1].rstrip("/"))
    )
    assert is_tiny(mnist())
    assert mirrors.requests == [f"/b/{name}.gz" for name in NAMES]


def test_if_all_fail_the_error_lists_every_place_with_its_reason(
    tmp_path, cache, mirrors
):
    fill(cache)
    (cache / f"{TRAIN_X}.gz").write_bytes(b"")
    mirrors.answers[f"/a/{TRAIN_X}.gz"] = BAD_ANSWERS["404"]
    mirrors.answers[f"/b/{TRAIN_X}.gz"] = BAD_ANSWERS["HTML with 200"]
    with pytest.raises(FileNotFoundError) as caught:
        mnist()
    assert isinstance(caught.value, ValueError)
    lines = str(caught.value).splitlines()
    for place, reason in [
        (tmp_path / "clone", f"no {TRAIN_X}"),
        (cache / f"{TRAIN_X}.gz", "truncated header"),
        (f"{mirrors.urls[0]}{TRAIN_X}.gz", "404"),
        (f"{mirrors.urls[1]}{TRAIN_X}.gz", "web page"),
    ]:
        assert any(line.startswith(f"  {place}") and reason in line for line in lines)
    assert "$EQX_MLP_DATA" in lines[-1]
    assert names_in(cache) == ALL_GZ  # no half of a download is left


@pytest.mark.parametrize(
    "content", [b"", b"junk", GOOD_GZ[:-9], gzip.compress(OTHER), b"<html>"]
)
def test_a_bad_file_in_the_cache_is_replaced_and_the_good_ones_are_kept(
    cache, mirrors, caplog, content
):
    fill(cache)
    bad = cache / f"{TRAIN_X}.gz"
    bad.write_bytes(content)
    assert is_tiny(mnist())
    assert mirrors.requests == [f"/a/{TRAIN_X}.gz"]
    assert gzip.decompress(bad.read_bytes()) == RAW[TRAIN_X]
    assert names_in(cache) == ALL_GZ
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "replacing" in warnings[0]
    assert str(bad) in warnings[0]


def test_without_pooch_the_error_names_the_extra(no_pooch, tmp_path, cache):
    with pytest.raises(ImportError, match=r"pip install 'eqx-mlp\[download\]'") as e:
        mnist()
    assert str(tmp_path / "clone") in str(e.value)
    assert str(cache) in str(e.value)


def test_a_cache_that_cannot_be_made_is_said(tmp_path, mirrors):
    (tmp_path / "cache").write_bytes(b"a file in the way")
    with pytest.raises(ValueError, match="cannot be made"):
        mnist()


def test_a_download_stops_at_the_limit(monkeypatch, mirrors):
    monkeypatch.setattr(_mnist, "MAX_BYTES", 10000)
    monkeypatch.setattr(_mnist, "MIRRORS", mirrors.urls[:1])
    mirrors.answers[f"/a/{TRAIN_X}.gz"] = BAD_ANSWERS["endless"]
    with pytest.raises(ValueError, match="at most 10000 bytes, the mirror sent more"):
        mnist()


def test_a_system_that_refuses_to_replace_the_file_still_gives_the_data(
    monkeypatch, cache, mirrors
):
    def refuse(*args):
        raise PermissionError("another process reads it")

    monkeypatch.setattr(_mnist.os, "replace", refuse)
    assert is_tiny(mnist())
    assert names_in(cache) == []


def test_without_a_home_folder_the_error_names_the_variable(monkeypatch, mirrors):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(FileNotFoundError, match=r"home directory\. Set XDG_CACHE_HOME"):
        mnist()


def test_a_download_is_not_seen_before_it_is_whole(cache, mirrors):
    half_sent, go_on = threading.Event(), threading.Event()

    def slowly(handler):
        body = GOOD_GZ
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:1000])
        half_sent.set()
        assert go_on.wait(20)
        handler.wfile.write(body[1000:])

    mirrors.answers[f"/a/{TRAIN_X}.gz"] = slowly
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(mnist)
        try:
            assert half_sent.wait(20)
            (part,) = names_in(cache)
            assert part.endswith(".part")
            assert f"{TRAIN_X}.gz" not in names_in(cache)
        finally:
            go_on.set()
        assert is_tiny(result.result(20))
    assert names_in(cache) == ALL_GZ


def test_two_that_download_at_once_both_get_it(cache, mirrors):
    # Each answer waits until both have asked, so that both are sure to be at it.
    both = threading.Barrier(2, timeout=20)

    def together(handler):
        both.wait()
        mirrors.good(handler)

    mirrors.answers = {f"/a/{name}.gz": together for name in NAMES}
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(mnist), pool.submit(mnist)
        assert is_tiny(first.result(40))
        assert is_tiny(second.result(40))
    assert len(mirrors.requests) == 8
    assert names_in(cache) == ALL_GZ
    assert is_tiny(mnist())
