"""Record small stores of Apache's brokers for the default suite: `python -m tests.interop.record_stores`.

Needs what the interop tests need (Java, mvn, Maven Central). Replaces tests/audit/data/rocketmq-*.tar.xz.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path
from zlib import crc32

from dledger.local.cluster import find_base_port
from tests.audit.recorded import DATA, VERSIONS
from tests.interop.apache import ApacheGroup
from tests.interop.conftest import rocketmq_libraries
from tests.interop.test_apache_stores import Plan, Produced, produce

PLAN = Plan(singles=60, batches=2, delayed=3, large=200)
SEGMENT_SIZE = 16 * 1024
KEPT = ("dledger-n?/**/*", "consumequeue/**/*", "index/*")


def main() -> None:
    """All versions, one after another."""
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            group = ApacheGroup(
                Path(directory),
                rocketmq_libraries(int(version[0])),
                find_base_port(start=24000),
                segment_size=SEGMENT_SIZE,
            )
            result = Produced(group.stores)
            try:
                group.start()
                produce(group, result, PLAN)
                group.wait_caught_up(len(result.acked) + 2 * result.delayed)
            finally:
                group.stop()
            path = DATA / f"rocketmq-{version}.tar.xz"
            pack(path, Path(directory), result)
            print(f"{path.name}: {len(result.acked)} messages, {path.stat().st_size} bytes")


def pack(path: Path, root: Path, result: Produced) -> None:
    """See tests/audit/recorded.py."""
    files: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    for store in result.stores:
        for pattern in KEPT:
            for file in sorted(store.glob(pattern)):
                if file.is_file():
                    name = str(file.relative_to(root))
                    sizes[name] = file.stat().st_size
                    files[name] = file.read_bytes().rstrip(b"\0")
    sent = [
        [*place, crc32(message.body), message.tags, message.keys] for place, message in result.acked.items()
    ]
    files["sizes.json"] = json.dumps(sizes).encode()
    files["sent.json"] = json.dumps({"killed": result.killed, "sent": sent}).encode()
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main()
