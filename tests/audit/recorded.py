"""Stores that brokers of Apache RocketMQ wrote in DLedger mode, recorded by tests/interop/record_stores.py.

`tests/audit/data/rocketmq-<version>.tar.xz`: three stores `n0` to `n2` without the zeros at the end of their
files, `sizes.json` (path -> bytes) and `sent.json`: what was acknowledged, a list of
[topic, queue id, queue offset, CRC-32 of the body, tag or null, keys or null].
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
VERSIONS = ("4.9.5", "5.4.0")

Sent = dict[tuple[str, int, int], tuple[int, str | None, str | None]]
"""By topic, queue id and queue offset: CRC-32 of the body, tag, keys."""


def restore(version: str, root: Path) -> tuple[list[Path], Sent]:
    """Unpack below `root`: the stores, and what was acknowledged."""
    with tarfile.open(DATA / f"rocketmq-{version}.tar.xz") as archive:
        archive.extractall(root, filter="data")
    for path, size in json.loads((root / "sizes.json").read_text()).items():
        with (root / path).open("r+b") as file:
            file.truncate(size)
    rows = json.loads((root / "sent.json").read_text())
    return [root / name for name in ("n0", "n1", "n2")], {tuple(row[:3]): tuple(row[3:]) for row in rows}
