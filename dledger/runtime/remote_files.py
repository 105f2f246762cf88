"""Access to files that URLs name: `s3://bucket/store`, `memory://store`, and everything else that fsspec
knows.

Every tool opens a store with `files_for(path)`. Plain paths use `OsFiles`. For a URL the driver is found and
imported only when it is needed. The driver is configured in its usual way: with its own environment variables
and files (`AWS_*`, ...), or with fsspec's. Access is read-only unless `writable` is given. Then whole objects
can be written and removed, but object stores can neither change a part of a file nor rename one
(`runtime.atomic_file.replace_file`).

An object store answers a request in tens of milliseconds and then delivers fast. So files are read in aligned
blocks. When reads go forward, more is read in advance. And one listing of a directory is used for all of its
names for a short time. No node works on a store in an object store, so the length of a file is the length at
the time of opening.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from dledger.runtime.files import Buffer, DiskUsage, Files, FileStamp, OsFiles

BLOCK = 1024 * 1024
"""Size, in bytes, of the smallest read, which is aligned. Several small reads near each other, also
backwards, cost one request."""
MAX_AHEAD = 8 * 1024 * 1024
"""Limit, in bytes, of what is read in advance; an open file keeps it in memory."""
REQUEST_LIMIT_S = 60.0
"""Time, in seconds, after which a request of a writable object fails. Its user is a server, whose thread must
return. Without this limit s3fs would wait for ever for a store that accepts a PUT and does not answer."""
LISTED_FOR_S = 2.0
"""Time, in seconds, for which a listing is used. A scan asks for the same names dozens of times in a row, but
a repeated audit must find new names."""

_EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Maps the scheme of a URL to the extra of this package that installs its driver. Other schemes have no
extra."""

_ETAGS = ("ETag", "etag")
"""Names under which drivers report the ETag. An object store computes the ETag from the content."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://|::)")


def files_for(path: str, plain: Files | None = None, *, writable: bool = False) -> Files:
    """Return the `Files` object that opens `path` and the names below it; these names are written in the same
    form as `path`.

    `plain` is the object for plain paths, if it is not that of the operating system. `writable` allows whole
    objects to be written if `path` is a URL. The returned objects can be pickled. Raises OSError with the
    reason if the scheme is unknown, if its driver is not installed, or if its first action fails.
    """
    return FsspecFiles(path, writable=writable) if is_url(path) else plain or OsFiles()


def check_driver(url: str) -> None:
    """Check that the driver that the URL needs is installed. Raises OSError if it is not. The driver is
    loaded but does not connect. (`files_for` may connect.)"""
    scheme = _scheme(url)
    with _as_missing(url):
        _fsspec(url).get_filesystem_class(scheme)


def is_url(path: str) -> bool:
    """Whether the path is a URL (`s3://...`), which is opened through a driver, and not a local file."""
    return _SCHEME.match(path) is not None


def absolute(path: str) -> str:
    """Convert a path that a user gave into a form that means the same in another process. `file:` becomes a
    plain path."""
    if path.startswith("file:"):
        return os.path.abspath(re.sub("^file:(//(localhost)?(?=/))?", "", path))
    return path if is_url(path) else os.path.abspath(path)


class FsspecFiles:
    """A `Files` object for the file system that a URL names.

    All writing is refused with OSError (EROFS). An object that was made as writable allows `put`, `unlink`
    and `rmtree`, and nothing else. Its requests fail after REQUEST_LIMIT_S, if a request of the driver can be
    stopped; drivers of object stores allow this.
    """

    def __init__(self, url: str, *, writable: bool = False) -> None:
        self._url = url.rstrip("/")
        self._writable = writable
        self._fs, root = _driver(url)
        self._root: str = root.rstrip("/")
        stoppable = writable and getattr(self._fs, "async_impl", False)
        self._limit = {"timeout": REQUEST_LIMIT_S} if stoppable else {}
        self._listings: dict[str, tuple[float, dict[str, dict[str, Any]]]] = {}

    def __reduce__(self) -> tuple[Callable[[], FsspecFiles], tuple[()]]:
        # Listings of this process may be outdated where the object is unpickled.
        return partial(FsspecFiles, self._url, writable=self._writable), ()

    def open(self, path: str, create: bool = False) -> FsspecFile:
        """Raise OSError (EROFS); files are opened with `open_read`."""
        _refuse(path)

    def open_read(self, path: str) -> FsspecFile:
        """Open for reading. Raises FileNotFoundError if there is no such file."""
        return FsspecFile(self._fs, self._key(path), path, self.size(path))

    def get(self, path: str) -> bytes | None:
        """Read a whole object with one request, so that it never mixes two versions. None if there is no such
        object."""
        with _as_os_error(path):
            try:
                # Without `start` s3fs asks for the size first, and gets large objects in several requests.
                data: bytes = self._fs.cat_file(self._key(path), start=0, **self._limit)
            except FileNotFoundError:
                return None
            except TimeoutError:
                raise
            except Exception:
                self._listings.clear()
                info = self._info(path)
                if info is None or info["type"] == "directory" or info["size"]:
                    raise
                return b""  # an empty object has no range to return
        return data

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, which replaces an older one; durable when the call returns. Readers see the
        old object or the new one if the store guarantees that for a PUT, as object stores do.
        """
        self._must_be_writable(path)
        with _as_os_error(path):
            self._fs.pipe_file(self._key(path), data, **self._limit)
        self._listings.clear()

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        return self._info(path) is not None

    def size(self, path: str) -> int:
        """Return the length in bytes. Raises FileNotFoundError if there is no such file."""
        info = self._info(path)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return int(info["size"] or 0)

    def stamp(self, path: str) -> FileStamp | None:
        """Return a stamp made from the ETag, which identifies the content; None if the store has no ETags.
        Raises FileNotFoundError if there is no such file."""
        size, info = self.size(path), self._info(path) or {}
        tag = next((info[name] for name in _ETAGS if info.get(name)), None)
        return None if tag is None else FileStamp(0, f"{size} {tag}")

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. Empty if it does not exist, because object stores have no
        empty directories."""
        return sorted(self._listing(self._key(path), path))

    def is_dir(self, path: str) -> bool:
        """Whether the name is a directory, or a prefix of names in an object store."""
        info = self._info(path)
        return info is not None and info["type"] == "directory"

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        """Raise OSError (EROFS): no directories are made."""
        _refuse(path)

    def rename(self, old: str, new: str) -> None:
        """Raise OSError (EROFS): nothing is renamed."""
        _refuse(new)

    def unlink(self, path: str) -> None:
        """Remove an object; no error if it does not exist."""
        self._must_be_writable(path)
        with _as_os_error(path):
            try:
                self._fs.rm_file(self._key(path), **self._limit)
            except FileNotFoundError:
                return
            finally:
                self._listings.clear()

    def rmtree(self, path: str) -> None:
        """Remove all objects whose names begin with the path and a slash; no error if there are none."""
        self._must_be_writable(path)
        self._listings.clear()
        for name, info in self._listing(self._key(path), path).items():
            inside = f"{path}/{name}"
            if info["type"] == "directory":
                self.rmtree(inside)
            else:
                self.unlink(inside)

    def sync_dir(self, path: str) -> None:
        """Raise OSError (EROFS): nothing was written that could be synced."""
        _refuse(path)

    def usage(self, path: str) -> DiskUsage:
        """Raise OSError (ENOTSUP): the space of a remote store is not known."""
        raise OSError(errno.ENOTSUP, "the free space of a remote store is not known", path)

    def lock(self, path: str) -> FsspecFile:
        """Raise OSError (EROFS): remote stores are not locked."""
        _refuse(path)

    def _must_be_writable(self, path: str) -> None:
        if not self._writable:
            _refuse(path)

    def _key(self, path: str) -> str:
        """Return the driver's own name for the path."""
        if path == self._url or path.startswith(self._url + "/"):
            return self._root + path[len(self._url) :]
        return _driver(path)[1]

    def _info(self, path: str) -> dict[str, Any] | None:
        """Return details of a name; None if it does not exist. Any other failure raises OSError; fsspec's
        `exists` would hide it."""
        key = self._key(path).rstrip("/")
        parent, _, name = key.rpartition("/")
        if len(key) > len(self._root):
            return self._listing(parent, path).get(name)
        if key == self._root and self._listing(key, path):
            return {"name": key, "type": "directory", "size": 0}  # drivers look for a file of this name first
        # Above the store may be the top of a bucket, with many unrelated names: do not list it.
        with _as_os_error(path):
            try:
                info: dict[str, Any] = self._fs.info(key, **self._limit)
            except FileNotFoundError:
                return None
        return info

    def _listing(self, key: str, path: str) -> dict[str, dict[str, Any]]:
        """Return the entries of the directory `key`, by name; empty if it does not exist."""
        now = time.monotonic()
        at, known = self._listings.get(key, (now - LISTED_FOR_S, {}))
        if now - at < LISTED_FOR_S:
            return known
        with _as_os_error(path):
            try:
                found = self._fs.ls(key, detail=True, **self._limit)
            except FileNotFoundError:
                found = []
        inside = {info["name"].strip("/"): info for info in found}
        inside.pop(key.strip("/"), None)  # the directory itself: a file, or the mark of an empty directory
        known = {name.rpartition("/")[2]: info for name, info in inside.items()}
        self._listings[key] = (now, known)
        return known


class FsspecFile:
    """An open object. The range that was fetched last is kept. If threads read at the same time, the only
    harm is that a range is fetched again."""

    def __init__(self, fs: Any, key: str, path: str, size: int) -> None:
        self.path = path
        self._fs = fs
        self._key = key
        self._size = size
        self._held: tuple[int, bytes] = (0, b"")

    def size(self) -> int:
        """Return the length in bytes that the object had when it was opened."""
        return self._size

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        stop = min(offset + length, self._size)
        if stop <= offset:
            return b""
        start, held = self._held
        if not start <= offset <= stop <= start + len(held):
            start, held = self._held = self._fetch(offset, stop, start, held)
        return held[offset - start : stop - start]

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def fdatasync(self) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def start_writeback(self, length: int, offset: int) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def allocate(self, size: int) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def truncate(self, size: int) -> None:
        """Raise OSError (EROFS): the file is read-only."""
        _refuse(self.path)

    def pread_now(self, length: int, offset: int) -> bytes:
        """Read as `pread` does. Its blocks are not kept in memory for long, so it may have to wait for the
        store."""
        return self.pread(length, offset)

    def view(self) -> memoryview:
        """Fetch the whole object into memory and return it. `pread` needs less memory."""
        with _as_os_error(self.path):
            return memoryview(self._fs.cat_file(self._key, start=0, end=self._size))

    def close(self) -> None:
        """Drop the data that was fetched."""
        self._held = (0, b"")

    def _fetch(self, offset: int, stop: int, start: int, held: bytes) -> tuple[int, bytes]:
        """Fetch the blocks that cover the range. If the reads go forward, fetch more in advance: up to twice
        what was held before. Return the position and the bytes that are held now."""
        end = start + len(held)
        kept = b""
        first = offset - offset % BLOCK
        if held and start <= offset <= end < stop:
            kept, first = held[offset - start :], end
            stop = max(stop, first + min(2 * len(held), MAX_AHEAD))
        last = min(-(-stop // BLOCK) * BLOCK, self._size)
        with _as_os_error(self.path):
            data: bytes = self._fs.cat_file(self._key, start=first, end=last)
        if len(data) != last - first:
            said = (
                f"{len(data)} of {last - first} bytes were received from offset {first}: the "
                "object has changed"
            )
            raise OSError(errno.EIO, said, self.path)
        return (offset, kept + data) if kept else (first, data)


def _driver(url: str) -> tuple[Any, str]:
    """Return the file system of the URL, and its own name for the URL. It does not cache listings, because
    audits are repeated."""
    fsspec = _fsspec(url)
    with _as_os_error(url), _as_missing(url):
        fs, key = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return fs, str(key)


def _scheme(url: str) -> str:
    match = _SCHEME.match(url)
    return match[0] if match else "file"


def _fsspec(url: str) -> Any:
    try:
        return import_module("fsspec")
    except ImportError as error:
        extra = _EXTRAS.get(_scheme(url).lower(), "spark")
        text = f"paths with a scheme need the package fsspec: pip install 'dledger[{extra}]'"
        raise OSError(errno.EPROTONOSUPPORT, text, url) from error


@contextmanager
def _as_missing(url: str) -> Iterator[None]:
    """A context manager that turns fsspec's errors for missing or unknown drivers into an OSError that
    explains them."""
    scheme = _scheme(url)
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get(scheme.lower())
        hint = f": pip install 'dledger[{extra}]'" if extra else ""
        raise OSError(
            errno.EPROTONOSUPPORT, f"the driver for {scheme}: is missing: {error}{hint}", url
        ) from error
    except ValueError as error:
        known = _fsspec(url).available_protocols()
        near = get_close_matches(scheme.lower(), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
        raise OSError(errno.EPROTONOSUPPORT, f"{error}; {hint}", url) from error


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """A context manager that turns any error of a driver into an OSError that names the path."""
    try:
        yield
    except TimeoutError as error:
        text = str(error) or "no answer within the time limit"
        raise OSError(errno.ETIMEDOUT, text, path) from error
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


def _refuse(path: str) -> NoReturn:
    raise OSError(
        errno.EROFS, "remote stores can only be opened for reading, or for writing whole objects", path
    )
