"""Digests in object storage: shipped to and read from URLs, as to and from directories."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import options

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")

import fsspec

from dledger.audit.local import audit_sources
from dledger.audit.replicas import ReplicaSource
from dledger.audit.report import Report
from dledger.audit.shipped import ShippedSource
from dledger.broker.audit.shipping import Shipper, ShipSettings, check_installed
from dledger.broker.config import SETTINGS
from dledger.runtime import remote_files
from dledger.runtime.env import Env
from dledger.runtime.rate_limit import Pace
from dledger.runtime.remote_files import files_for
from dledger.runtime.settings import ConfigError
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import SEGMENT_SIZE, Log, cut_after, segment_path, write_group
from tests.audit.test_audit_shipped import directories, env, log, until

__all__ = ["env", "log"]  # fixtures

NODES = 3


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A place of its own in the memory of this process."""
    name = f"memory://{request.node.originalname}/digests"
    yield name
    memory = fsspec.filesystem("memory")
    if memory.exists(name):
        memory.rm(name, recursive=True)


class Memory:
    """Requests to the driver of `memory:`, and what they are to fail with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put: list[str] = []
        self.listed: list[str] = []
        self.got: list[str] = []
        self.threads: set[str] = set()
        self.error: Callable[[str], Exception] | None = None
        kind = type(fsspec.filesystem("memory"))
        put, ls, get = kind.pipe_file, kind.ls, kind.cat_file

        def pipe_file(fs: Any, path: str, value: bytes, **options: Any) -> None:
            self.threads.add(threading.current_thread().name)
            if self.error is not None:
                raise self.error(path)
            self.put.append(path.partition("/digests/")[2])
            put(fs, path, value, **options)

        def count(fs: Any, path: str, *args: Any, **options: Any) -> Any:
            self.threads.add(threading.current_thread().name)
            self.listed.append(path)
            return ls(fs, path, *args, **options)

        def cat_file(fs: Any, path: str, **options: Any) -> Any:
            self.threads.add(threading.current_thread().name)
            self.got.append(path)
            return get(fs, path, **options)

        monkeypatch.setattr(kind, "pipe_file", pipe_file)
        monkeypatch.setattr(kind, "ls", count)
        monkeypatch.setattr(kind, "cat_file", cat_file)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def shipper(env: Env, store: Path, url: str, node: str) -> Shipper:
    return Shipper(env, ShipSettings(url, "g0", 10, 24), str(store), node, Pace(0))


def ship(env: Env, stores: list[Path], url: str) -> list[int]:
    """One round of each broker; how many segments each scanned."""
    return [asyncio.run(shipper(env, store, url, store.name).ship()) for store in stores]


def from_digests(env: Env, url: str, drill: list[ReplicaSource]) -> Report:
    source = ShippedSource(url, "g0", files_for(url))
    return asyncio.run(audit_sources(env, [source], drill_sources=drill))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("flipped body byte", "rewritten committed entry", "wrong ConsumeQueue unit"),
        ("rot and a deleted segment", "wrong index unit"),
    ],
    ids=lambda names: names[0] if names else "clean",
)
def test_the_report_is_that_of_the_stores(
    names: tuple[str, ...], log: Log, env: Env, url: str, tmp_path: Path
) -> None:
    stores = write_group(log, tmp_path)
    for fault in by_names(*names):
        fault.inject(stores, log)
    ship(env, stores, url)
    report = from_digests(env, url, directories(stores))
    assert report.as_json() == audit(stores).as_json()
    assert bool(report.findings) == bool(names)


def test_a_command_reads_what_was_shipped_to_a_url(log: Log, env: Env, url: str, tmp_path: Path) -> None:
    from dledger.spark.places import BadPlace, groups_to_audit

    ship(env, write_group(log, tmp_path), url)
    (group,) = groups_to_audit(options("spark", "audit", "--digests", url), env.wall.now_ms())
    report = asyncio.run(audit_sources(env, group.sources, drill_sources=group.drill_sources))
    assert (report.exit_code, len(report.replicas)) == (0, NODES)
    with pytest.raises(BadPlace, match=r"no digests were shipped there: check digestShipPath"):
        groups_to_audit(options("spark", "audit", "--digests", f"{url}/none"), 0)
    with pytest.raises(BadPlace, match="did you mean 's3'"):
        groups_to_audit(options("spark", "audit", "--digests", "s33://bucket"), 0)


def test_a_round_puts_what_is_new_by_one_request_each(
    log: Log, env: Env, url: str, memory: Memory, tmp_path: Path
) -> None:
    (store, *_) = write_group(log, tmp_path, 1)
    starts = [f"{start:020d}" for start in sorted(log.segments)]
    here = "group=g0/replica=n0/segment="
    assert ship(env, [store], url) == [len(starts)]
    assert memory.put == [f"{here}{name}/rows.parquet" for name in (*starts, "side")]
    assert ship(env, [store], url) == [0]
    assert memory.put[len(starts) + 1 :] == [f"{here}side/rows.parquet"]
    assert memory.threads == {"scan-0"}, "the lane for jobs of seconds, never the event loop"
    assert len(memory.got) == 2 * (len(starts) + 1)
    assert len(memory.listed) == 2, "of its own names only, once a round"


def test_an_audit_asks_twice_for_each_segment(
    log: Log, env: Env, url: str, memory: Memory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote_files, "LISTED_FOR_S", 1000.0)  # however slow this machine is
    ship(env, write_group(log, tmp_path), url)
    memory.listed.clear()
    memory.got.clear()
    assert from_digests(env, url, []).exit_code == 0
    segments = NODES * len(log.segments)
    assert len(memory.got) == segments + 2 * NODES, "rows of segments; those of sides again at the end"
    assert len(memory.listed) == segments + NODES + 2, "sizes of segments; names above them"


def test_retired_segments_go_one_round_later(log: Log, env: Env, url: str, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path, 1)
    ship(env, [store], url)
    segment_path(store, 0).unlink()
    first = f"{url}/group=g0/replica=n0/segment={0:020d}/rows.parquet"
    ship(env, [store], url)
    assert files_for(url).exists(first)
    ship(env, [store], url)
    assert not files_for(url).exists(first)
    assert files_for(url).exists(first.replace(f"{0:020d}", f"{SEGMENT_SIZE:020d}"))


def test_a_failed_upload_leaves_what_was_there_and_is_tried_again_with_one_line_a_cause(
    log: Log,
    env: Env,
    url: str,
    memory: Memory,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    stores = write_group(log, tmp_path)
    for store in stores:
        cut_after(store, log, 1500)
    ship(env, stores, url)
    before = from_digests(env, url, []).as_json()
    longer = write_group(log, tmp_path / "longer")
    one = shipper(env, longer[0], url, "n0")
    requests = iter(range(10**6))
    caplog.set_level(logging.INFO)

    def denied(path: str) -> Exception:
        return RuntimeError(f"403 for {path}, request 7f3a-{next(requests)}")

    def full(path: str) -> Exception:
        return OSError(28, "No space left on device", path)

    async def run() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(one.run(), name="ship")
            for error in (denied, full, denied):
                memory.error, failed = error, one.stats.failures
                await until(lambda failed=failed: one.stats.failures >= failed + 4)  # type: ignore[misc]
            assert from_digests_now() == before
            memory.error = None
            await until(lambda: one.stats.rounds >= 2)
            task.cancel()

    def from_digests_now() -> dict[str, Any]:
        source = ShippedSource(url, "g0", files_for(url))
        with_loop: list[dict[str, Any]] = []
        thread = threading.Thread(
            target=lambda: with_loop.append(asyncio.run(audit_sources(env, [source])).as_json())
        )
        thread.start()
        thread.join()
        return with_loop[0]

    asyncio.run(run())
    said = [record.message for record in caplog.records if "digests" in record.message]
    assert [re.split(" path=", line)[0] for line in said] == [
        "digests not shipped",
        "digests not shipped",
        "digests are shipped again",
    ]
    assert "403 for" in said[0] and "No space left" in said[1] and url in said[0]
    assert one.stats.segments > 0
    ship(env, longer[1:], url)
    assert from_digests(env, url, []).as_json() == audit(longer).as_json()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/shared/digests/", "/shared/digests"),
        ("/", "/"),
        ("", ""),
        ("shared", "shared"),
        ("s3://bucket/digests/", "s3://bucket/digests"),
        ("s3://bucket", "s3://bucket"),
        ("file:///shared/digests", "/shared/digests"),
        ("local:///shared/digests", "/shared/digests"),
    ],
)
def test_where_to_is_a_directory_or_a_url(written: str, meant: str) -> None:
    config, _ = SETTINGS.load({"dLegerPeers": "n0-127.0.0.1:40911", "digestShipPath": written})
    assert config.digest_ship_path == meant


@pytest.mark.parametrize("written", ["s3://", "s3:///", "simplecache::s3://bucket/x", "file:x", "s3::bucket"])
def test_what_names_no_place_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="expected a directory, or a URL such as s3://bucket/digests"):
        SETTINGS.load({"dLegerPeers": "n0-127.0.0.1:40911", "digestShipPath": written})


def test_what_is_installed_is_taken_at_the_start() -> None:
    for place in ("/nowhere", "memory://anywhere"):
        check_installed(place)
    with pytest.raises(ConfigError, match=r"digestShipPath: .*did you mean 's3'"):
        check_installed("s33://bucket/digests")
