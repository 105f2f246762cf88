"""What the system refuses while a file is made ends a node, and does not mark its store as damaged.

No entry was on the way to the disk: S3 is about writes and fsyncs of the log.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.errors import EXIT_START, EXIT_STORE, NodeFailed
from dledger.formats.store_files import POISONED_FILE
from dledger.node.node import Node
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile, OsFiles
from tests.dledger.test_store_of_another import OneNode, Served

REFUSED = [errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM]


class Refusing(OsFiles):
    """The system refuses one operation on paths that match."""

    def __init__(self, operation: str, pattern: str, number: int) -> None:
        self.operation = operation
        self.pattern = pattern
        self.number = number
        self.refused = 0

    def check(self, operation: str, path: str) -> None:
        if operation == self.operation and re.search(self.pattern, path):
            self.refused += 1
            raise OSError(self.number, "planted", path)

    def open(self, path: str, create: bool = False) -> OsFile:
        if create:
            self.check("open", path)
        file = super().open(path, create)
        planted = RefusingFile(path, file._fd)
        planted.files = self
        return planted

    def rename(self, old: str, new: str) -> None:
        self.check("rename", new)
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        super().sync_dir(path)


class RefusingFile(OsFile):
    files: Refusing

    def allocate(self, size: int) -> None:
        self.files.check("allocate", self.path)
        super().allocate(size)

    def truncate(self, size: int) -> None:
        self.files.check("truncate", self.path)
        super().truncate(size)

    def pwritev(self, parts: object, offset: int) -> None:
        self.files.check("write", self.path)
        super().pwritev(parts, offset)  # type: ignore[arg-type]

    def pwritev_synced(self, parts: object, offset: int) -> None:
        self.files.check("write", self.path)
        super().pwritev_synced(parts, offset)  # type: ignore[arg-type]


@pytest.fixture
def one(tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]) -> OneNode:
    return OneNode(tmp_path / "s", unused_tcp_ports(1)[0])


def end_of(one: OneNode, files: Refusing, prepared: int) -> NodeFailed:
    async def scenario() -> None:
        env = replace(production_env("test"), files=files)
        config = replace(one.config("n0"), pool_segments=prepared)
        await asyncio.wait_for(Node(env, config, Served()).run(), 60)

    with pytest.raises(NodeFailed) as failed:
        asyncio.run(scenario())
    assert files.refused
    return failed.value


@pytest.mark.parametrize("number", REFUSED, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("operation", "pattern", "prepared"),
    [
        ("open", "/index/0", 0),
        ("allocate", "/index/0", 0),
        ("truncate", "/index/0", 0),
        ("open", "/pool/", 0),
        ("allocate", "/pool/", 0),
        ("rename", "/data/0", 0),
        ("write", "/pool/.*filling", 1),
        ("rename", "/pool/.*ready", 1),
    ],
)
def test_a_file_that_could_not_be_made_leaves_a_store_that_is_well(
    operation: str, pattern: str, prepared: int, number: int, one: OneNode
) -> None:
    failed = end_of(one, Refusing(operation, pattern, number), prepared)
    assert failed.exit_code == EXIT_START
    assert "the store is intact" in failed.reason
    assert not (one.root / "dledger-n0" / POISONED_FILE).exists()
    assert one.run("n0"), "mended: it leads"


@pytest.mark.parametrize("number", [*REFUSED, errno.EIO], ids=errno.errorcode.get)
def test_a_write_that_failed_leaves_the_marker_and_says_so(number: int, one: OneNode) -> None:
    failed = end_of(one, Refusing("write", "/data/0", number), 0)
    assert failed.exit_code == EXIT_STORE
    assert POISONED_FILE in failed.reason
    assert "does not vote until a leader has refilled it" in failed.reason
    assert (one.root / "dledger-n0" / POISONED_FILE).exists()


def test_a_device_that_fails_while_a_file_is_made_is_one_that_failed(one: OneNode) -> None:
    failed = end_of(one, Refusing("allocate", "/index/0", errno.EIO), 0)
    assert failed.exit_code == EXIT_STORE
    assert (one.root / "dledger-n0" / POISONED_FILE).exists()
