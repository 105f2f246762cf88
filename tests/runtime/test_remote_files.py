"""URLs behind the file door: the same answers as plain files give, few requests, honest errors."""

from __future__ import annotations

import asyncio
import errno
import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.asyn import AsyncFileSystem

from dledger.runtime import remote_files
from dledger.runtime.atomic_file import read_file, replace_file
from dledger.runtime.files import Files, OsFiles
from dledger.runtime.remote_files import (
    BLOCK,
    MAX_AHEAD,
    FsspecFile,
    FsspecFiles,
    absolute,
    check_driver,
    files_for,
    is_url,
)
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[str]:
    """A URL of its own in the memory of this process."""
    url = f"memory://{request.node.originalname}"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True)


def upload(store: Path, url: str) -> None:
    """Every file of a directory; empty directories are lost, as in an object store."""
    fs = fsspec.filesystem("memory")
    for path in sorted(store.rglob("*")):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(store)}", path.read_bytes())


def small_tree(root: Path) -> Path:
    (root / "store" / "data").mkdir(parents=True)
    (root / "store" / "data" / "b").write_bytes(bytes(range(256)) * 64)
    (root / "store" / "data" / "a").write_bytes(b"")
    (root / "store" / "top").write_bytes(b"top")
    return root / "store"


def answers(files: Files, base: str) -> list[object]:
    """What a reader may ask."""
    names = ["", "/data", "/data/b", "/data/a", "/top", "/none", "/data/none"]
    said: list[object] = [(name, files.exists(base + name), files.is_dir(base + name)) for name in names]
    said += [files.listdir(base), files.listdir(f"{base}/data"), files.listdir(f"{base}/none")]
    said += [files.size(f"{base}/data/b"), files.size(f"{base}/data/a"), files.size(f"{base}/top")]
    file = files.open_read(f"{base}/data/b")
    reads = [(10, 0), (10, 16380), (10, 16384), (10, 99999), (0, 5), (99999, 3)]
    said += [file.size(), *(file.pread(length, offset) for length, offset in reads)]
    file.close()
    for name in ("/none", "/data/none"):
        for ask in (files.size, files.open_read):
            with pytest.raises(FileNotFoundError):
                ask(base + name)
    return said


def test_a_url_answers_as_a_directory_does(tmp_path: Path, memory: str) -> None:
    store = small_tree(tmp_path)
    upload(store, memory)
    expected = answers(OsFiles(), str(store))
    assert answers(files_for(memory), memory) == expected
    assert answers(files_for(memory + "/"), memory) == expected
    assert answers(files_for(f"file://{store}"), f"file://{store}") == expected
    assert answers(files_for(f"simplecache::{memory}"), f"simplecache::{memory}") == expected
    above_and_beside = files_for(f"{memory}/data/b")
    assert answers(above_and_beside, memory) == expected, "a door opens names beside its own, too"


def test_a_door_goes_to_other_processes(tmp_path: Path, memory: str) -> None:
    upload(small_tree(tmp_path), memory)
    door = pickle.loads(pickle.dumps(files_for(memory)))
    assert door.listdir(memory) == ["data", "top"]


def test_plain_paths_keep_the_files_of_the_system() -> None:
    other = OsFiles()
    for path in ("/a/b", "relative", "a:b", "", "C:/x", "/a//b"):
        assert isinstance(files_for(path), OsFiles) and not is_url(path)
        assert files_for(path, other) is other


def test_what_a_user_types_means_the_same_elsewhere() -> None:
    assert absolute("a/../b") == str(Path.cwd() / "b")
    assert absolute("s3://bucket/../x") == "s3://bucket/../x"
    for url in ("file:///a/b", "file:/a/b", "file://localhost/a/b"):
        assert absolute(url) == "/a/b"


def test_nothing_is_written(tmp_path: Path, memory: str) -> None:
    upload(small_tree(tmp_path), memory)
    files = files_for(memory)
    name = f"{memory}/top"
    file = files.open_read(name)
    for write in (
        lambda: files.open(name, create=True),
        lambda: files.mkdir(name),
        lambda: files.rename(name, name),
        lambda: replace_file(files, name, b"x"),
        lambda: files.unlink(name),
        lambda: files.rmtree(name),
        lambda: files.sync_dir(name),
        lambda: files.lock(name),
        lambda: file.pwritev([b"x"], 0),
        lambda: file.truncate(0),
        lambda: file.allocate(1),
        lambda: file.fdatasync(),
    ):
        with pytest.raises(OSError) as caught:
            write()
        assert caught.value.errno == errno.EROFS
    assert bytes(file.view()) == b"top"


def test_whole_objects_are_written_where_that_was_asked_for(memory: str) -> None:
    files = pickle.loads(pickle.dumps(files_for(memory, writable=True)))
    assert isinstance(files, FsspecFiles)
    assert read_file(files, f"{memory}/a/b=%2F/x") is None
    replace_file(files, f"{memory}/a/b=%2F/x", b"one")
    replace_file(files, f"{memory}/a/c", b"two")
    replace_file(files, f"{memory}/ab", b"beside")
    assert (files.listdir(memory), files.listdir(f"{memory}/a")) == (["a", "ab"], ["b=%2F", "c"])
    replace_file(files, f"{memory}/a/b=%2F/x", b"one and more")
    assert read_file(files_for(memory), f"{memory}/a/b=%2F/x") == b"one and more"
    files.unlink(f"{memory}/a/c")
    files.unlink(f"{memory}/a/c")
    assert files.listdir(f"{memory}/a") == ["b=%2F"]
    files.rmtree(f"{memory}/a")
    files.rmtree(f"{memory}/a")
    assert files.listdir(memory) == ["ab"], "what only begins alike stays"
    for write in (files.mkdir, files.sync_dir, files.lock, files.open):
        with pytest.raises(OSError) as caught:
            write(f"{memory}/ab")
        assert caught.value.errno == errno.EROFS


def test_a_small_file_is_read_whole_though_its_listing_is_old(memory: str) -> None:
    writer, reader = files_for(memory, writable=True), files_for(memory)
    replace_file(writer, f"{memory}/x", b"short")
    assert reader.size(f"{memory}/x") == 5
    replace_file(writer, f"{memory}/x", b"a longer one")
    assert reader.open_read(f"{memory}/x").pread(100, 0) == b"a lon", "its length was asked for before"
    assert read_file(reader, f"{memory}/x") == b"a longer one"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s33://bucket/x", "did you mean 's3'"),
        ("quux://x", "known are .*memory"),
        ("s3::", "known|missing|s3fs"),
    ],
)
def test_an_unknown_scheme_is_named(url: str, text: str) -> None:
    for ask in (files_for, check_driver):
        with pytest.raises(OSError, match=text):
            ask(url)


def test_without_fsspec_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert isinstance(files_for("/plain"), OsFiles), "plain paths do not need it"
    for ask in (files_for, check_driver):
        with pytest.raises(OSError, match=r"pip install 'dledger\[s3\]'"):
            ask("s3://bucket/x")
        with pytest.raises(OSError, match=r"pip install 'dledger\[spark\]'"):
            ask("memory://x")


def test_a_driver_that_cannot_connect_is_an_oserror_and_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **options: object) -> None:
        raise RuntimeError("no route to host")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(OSError, match="no route to host") as caught:
        files_for("memory://x")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "memory://x")
    check_driver("memory://x")


class Driver:
    """A driver that counts its requests and fails when told to."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def cat_file(self, key: str, start: int, end: int) -> bytes:
        self.requests.append((start, end))
        if self.error:
            raise self.error
        return self.data[start:end]

    def info(self, key: str, detail: bool = True) -> dict[str, Any]:
        raise self.error or FileNotFoundError(key)

    ls = info


def opened(data: bytes) -> tuple[Driver, FsspecFile]:
    driver = Driver(data)
    return driver, FsspecFile(driver, "key", "x://name", len(data))


def test_reads_that_go_forward_are_read_ahead() -> None:
    data = random.Random(1).randbytes(40 * BLOCK + 12345)
    driver, file = opened(data)
    at = 0
    while part := file.pread(BLOCK, at):  # as a scan does: a window, then on from the last whole entry in it
        assert part == data[at : at + BLOCK]
        at += len(part) - (777 if at + len(part) < len(data) else 0)
    fetched = sum(end - start for start, end in driver.requests)
    assert fetched == len(data), "nothing was fetched twice"
    assert len(driver.requests) <= 10
    assert max(end - start for start, end in driver.requests) <= MAX_AHEAD + BLOCK


def test_small_reads_backwards_share_a_request() -> None:
    driver, file = opened(bytes(8 * BLOCK))
    for at in range(8 * BLOCK - 65536, -1, -65536):  # as the end of a file of units is looked for
        assert file.pread(4096, at) == bytes(4096)
    assert len(driver.requests) == 8


def test_any_reads_give_the_bytes_that_are_there() -> None:
    rng = random.Random(2)
    data = rng.randbytes(3 * BLOCK + 5)
    _, file = opened(data)
    for _ in range(500):
        offset = rng.randrange(len(data) + 10)
        length = rng.choice([0, 1, 48, 4096, BLOCK, 2 * BLOCK])
        assert file.pread(length, offset) == data[offset : offset + length]


def test_an_object_that_became_shorter_is_an_error_not_a_short_read() -> None:
    driver, file = opened(bytes(3 * BLOCK))
    driver.data = driver.data[:100]
    with pytest.raises(OSError, match="has changed"):
        file.pread(10, 0)


def test_whatever_a_driver_raises_is_an_oserror_with_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, file = opened(b"abc")
    driver.error = RuntimeError("403 forbidden")
    monkeypatch.setattr(remote_files, "_driver", lambda url: (driver, "root"))
    files = files_for("x://store")
    for ask in (
        lambda: file.pread(1, 0),
        lambda: file.view(),
        lambda: files.exists("x://store/x"),
        lambda: files.is_dir("x://store/x"),
        lambda: files.listdir("x://store"),
        lambda: files.size("x://store/x"),
    ):
        with pytest.raises(OSError, match="RuntimeError: 403 forbidden") as caught:
            ask()
        assert caught.value.filename


class Silent(AsyncFileSystem):  # type: ignore[misc]
    """A server that takes every request and says nothing."""

    protocol = "silent"

    async def _silence(self, *args: object, **options: object) -> None:
        await asyncio.Event().wait()

    _pipe_file = _cat_file = _ls = _info = _rm_file = _silence


def test_a_writer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("silent", Silent, clobber=True)
    monkeypatch.setattr(remote_files, "REQUEST_LIMIT_S", 0.1)
    files = files_for("silent://place/x", writable=True)
    assert isinstance(files, FsspecFiles)
    for ask in (
        lambda: files.put("silent://place/x/y", b"1"),
        lambda: files.get("silent://place/x/y"),
        lambda: files.unlink("silent://place/x/y"),
        lambda: files.rmtree("silent://place/x/y"),
        lambda: files.listdir("silent://place/x"),
        lambda: files.exists("silent://place"),
    ):
        with pytest.raises(TimeoutError, match="no answer within the time limit") as caught:
            ask()
        assert caught.value.errno == errno.ETIMEDOUT and str(caught.value.filename).startswith("silent://")


def test_an_empty_object_of_which_no_range_can_be_had_is_empty(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_for(memory, writable=True)
    replace_file(files, f"{memory}/empty", b"")
    replace_file(files, f"{memory}/full", b"x")

    def cat_file(fs: Any, path: str, start: int | None = None, end: int | None = None) -> bytes:
        raise RuntimeError("416 no such range")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", cat_file)
    assert read_file(files, f"{memory}/empty") == b""
    for name in ("full", "none"):
        with pytest.raises(OSError, match="416"):
            read_file(files, f"{memory}/{name}")


def test_stores_in_an_object_store_are_audited_with_the_same_findings(tmp_path: Path, memory: str) -> None:
    log = sample_log()
    stores = write_group(log, tmp_path)
    for fault in by_names("flipped body byte", "rewritten committed entry", "wrong index unit", "torn tail"):
        fault.inject(stores, log)
    for store in stores:
        upload(store, f"{memory}/{store.name}")
    local = json.dumps(audit(stores).as_json())
    assert '"verdict": "critical"' in local
    everywhere = json.dumps(audit([f"{memory}/{store.name}" for store in stores]).as_json())
    assert everywhere.replace(memory, str(tmp_path)) == local
    mixed = json.dumps(audit([stores[0], f"{memory}/{stores[1].name}", stores[2]]).as_json())
    assert mixed.replace(memory, str(tmp_path)) == local


def test_a_url_that_holds_no_store_is_told(memory: str) -> None:
    fsspec.filesystem("memory").pipe_file(f"{memory}/x", b"1")
    for url, text in ((f"{memory}/nothing", "no such directory"), ("s33://x", "did you mean 's3'")):
        report = audit([url])
        assert report.exit_code == 4
        assert text in report.findings[0].detail


def test_names_of_one_directory_are_asked_for_once_and_again_later(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(small_tree(tmp_path), memory)
    files = files_for(memory)
    fs = fsspec.filesystem("memory")
    asked: list[str] = []
    really = fs.ls

    def ls(path: str, *args: Any, **options: Any) -> Any:
        asked.append(path)
        return really(path, *args, **options)

    monkeypatch.setattr(fs, "ls", ls)
    monkeypatch.setattr(files, "_fs", fs)
    for _ in range(20):
        assert files.exists(f"{memory}/data/a") and not files.exists(f"{memory}/data/none")
        assert files.size(f"{memory}/data/b") == files.open_read(f"{memory}/data/b").size() == 16384
        assert files.listdir(f"{memory}/data") == ["a", "b"]
    assert len(asked) == 1
    fs.pipe_file(f"{memory}/data/none", b"1")
    monkeypatch.setattr(remote_files, "LISTED_FOR_S", 0.0)
    assert files.exists(f"{memory}/data/none")
    assert not pickle.loads(pickle.dumps(files))._listings
