"""Composition and life cycle of one broker. Arguments, signals and logging are set up in `cli`. The simulator
runs the same function on its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from dledger.broker.broker import Broker, NodeFactory
from dledger.broker.config import BrokerConfig
from dledger.errors import EXIT_BUG, EXIT_START, EXIT_STORE, PASSING, NodeFailed, refused_by_system
from dledger.formats.state import TABLES, Source
from dledger.formats.store_files import LOCK_FILE
from dledger.log.recovery import REFILL_ADVICE
from dledger.node.leadership import FAREWELL_S
from dledger.runtime.env import Env
from dledger.runtime.files import File, Files
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.settings import ConfigError
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger.broker.http.server import HttpServer


async def main(
    env: Env,
    config: BrokerConfig,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[Broker], None] | None = None,
    make_node: NodeFactory | None = None,
    tables: Sequence[Source] = TABLES,
    source: SettingsSource | None = None,
) -> None:
    """Run a broker until `stop` is set. Raises NodeFailed if the broker must end, and OSError, which names
    the port, if a port is in use.

    `on_ready` is called when clients can connect. On `stop`, leadership is handed over, a snapshot is taken,
    the broker is unregistered from the NameServers, and everything is closed. `tables`: the tables of the
    replicated state (`formats.state`). `source`: where the settings come from, and where changes of settings
    are written.
    """
    if make_node is None:
        from dledger.node.node import Node

        make_node = Node
    lock = await env.workers.run(Lane.DISK, _take_root, env.files, config.store_root)
    broker = Broker(env, config, make_node, source, tables)
    http: HttpServer | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = _Tasks(group, config.self_id)
            tasks.start("node", broker.node.run())
            tasks.start("standstill", broker.standstill.run())
            await broker.opened.wait()
            await broker.server.start(config.bind_address, config.listen_port)
            http = await _start_http(broker)
            await _serve_vip_channel(broker)
            for name, work in broker.tasks():
                tasks.start(name, work())
            if on_ready is not None:
                on_ready(broker)
            await stop.wait()
            await _shut_down(broker, tasks)
    except BaseExceptionGroup as failures:
        # Not `except*`: what is raised from there comes in a group again (always, before Python 3.11.4).
        raise _reason(failures) from failures
    finally:
        await broker.server.close()
        if http is not None:
            await http.port.close()
        lock.close()


def _take_root(files: Files, root: str) -> File:
    """Lock the store directory, because its ConsumeQueues and snapshots belong to one broker. The log has a
    lock of its own, in its directory. Raises NodeFailed if another broker holds the lock."""
    path = f"{root}/{LOCK_FILE}"
    try:
        files.mkdir(root)
        return files.lock(path)
    except BlockingIOError as error:
        text = f"another process uses {path}: each broker needs its own storePathRootDir"
        raise NodeFailed(text, EXIT_START) from error
    except OSError as error:
        raise refused_by_system(f"cannot open the store {root}", error) from error


class _Tasks:
    def __init__(self, group: asyncio.TaskGroup, name: str) -> None:
        self._group = group
        self._name = name
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = self._group.create_task(work, name=f"broker-{self._name}-{name}")

    def cancel(self, name: str) -> None:
        self._tasks.pop(name).cancel()

    def cancel_all(self) -> None:
        for task in reversed(self._tasks.values()):  # the node last, because the other tasks use it
            task.cancel()


async def _serve_vip_channel(broker: Broker) -> None:
    """Serve the VIP channel if it is enabled. If its port is in use, this is only logged, because nearly all
    clients do not need the VIP channel."""
    port = broker.config.vip_port
    if port is None:
        return
    try:
        await broker.server.start(broker.config.bind_address, port)
    except OSError as error:
        broker.env.log.warning(
            "the VIP channel is not open: clients that use it, such as RocketMQ's dashboard by "
            "default, get no answer. Free the port, choose another listenPort, or set "
            "vipChannelEnabled=false",
            reason=str(error),
        )


async def _start_http(broker: Broker) -> HttpServer | None:
    if not broker.config.http_port:
        return None
    from dledger.broker.http.server import HttpServer  # load aiohttp only if it is needed

    http = HttpServer(broker)
    config = broker.config
    await http.port.start(config.http_address or config.bind_address, config.http_port)
    return http


async def _shut_down(broker: Broker, tasks: _Tasks) -> None:
    """Shut down in order. While another node takes over, this node still answers requests and names the
    leader."""
    log = broker.env.log
    moved = await broker.hand_over()
    log.info("stopping", handed_over=moved)
    tasks.cancel("registration")
    await broker.features.registration.registrar.unregister()
    if moved:
        await asyncio.sleep(FAREWELL_S)
    broker.forwarder.farewell()
    await broker.server.close()
    try:
        await broker.store.save_snapshot()
        await broker.index.close()
    except OSError as error:
        if error.errno not in PASSING:
            raise
        log.warning("stopped without a last snapshot: the next start replays more of the log", error=error)
    await broker.client.close()
    tasks.cancel_all()


def _reason(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the error that ended the broker. A failed node has priority over I/O errors that it may have
    caused elsewhere."""
    leaves: list[BaseException] = []
    groups: list[BaseExceptionGroup[Any]] = [group]
    while groups:
        for error in groups.pop().exceptions:
            if isinstance(error, BaseExceptionGroup):
                groups.append(error)
            else:
                leaves.append(error)
    for kind in (NodeFailed, ConfigError, FileNotFoundError, OSError):
        for leaf in leaves:
            if isinstance(leaf, FileNotFoundError):
                text = (
                    f"a file of the store was removed while the broker was running: {leaf}. {REFILL_ADVICE}"
                )
                failed = NodeFailed(text, EXIT_STORE)
                failed.__cause__ = leaf
                return failed
            if isinstance(leaf, kind):
                return leaf
    return NodeFailed(f"unexpected {leaves[0]!r}: this is a bug", EXIT_BUG)
