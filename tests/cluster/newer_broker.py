"""A broker of a newer program: it has one more table of replicated state, and writes to it as soon as it may.

Run as `dledger broker` is. What becomes of each note goes to standard output.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from dledger.broker import cli as outer_shell
from dledger.broker.app import main
from dledger.broker.broker import Broker
from dledger.chaos.scenarios.newer import NEWER_TABLES, NOTES, Note
from dledger.remoting.errors import RemotingError

EVERY_S = 0.1


def note(broker: Broker) -> None:
    """Write one, where this broker leads and has written none."""
    asyncio.get_running_loop().call_later(EVERY_S, note, broker)
    writer = broker.gate.writer
    if writer is None or not writer.room or "first" in writer.pending[NOTES].rows:
        return
    try:
        writer.append_op(Note("first", broker.config.self_id).op())
        print("note written", flush=True)
    except RemotingError as error:
        print(f"note waits: {error.remark}", flush=True)


async def newer_main(*given: Any, on_ready: Callable[[Broker], None], **named: Any) -> None:
    """As `broker.app.main`, with the newer tables."""

    def ready(broker: Broker) -> None:
        on_ready(broker)
        note(broker)

    await main(*given, on_ready=ready, tables=NEWER_TABLES, **named)


if __name__ == "__main__":
    outer_shell.main = newer_main  # type: ignore[assignment]
    sys.exit(outer_shell.program())
