"""Options that several of RocketMQ's commands have, and the class with which a command is declared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from dledger.commands.mqadmin.options import Option

if TYPE_CHECKING:
    from dledger.commands.mqadmin.call import Call

BROKER = Option("b", "brokerAddr", "Address of one broker")
CLUSTER = Option("c", "clusterName", "All brokers of this cluster")
ONE_BROKER = Option("b", "brokerAddr", "Address of one broker", one_of="where")
ONE_CLUSTER = Option("c", "clusterName", "All brokers of this cluster", one_of="where")
TOPIC = Option("t", "topic", "Topic name", required=True)
GROUP = Option("g", "consumerGroup", "Consumer group name", required=True)
ROUTE_TOPIC = Option("c", "cluster", "Topic whose brokers are asked, for queues without a route (LMQ)")


@dataclass(frozen=True)
class Command:
    """One of RocketMQ's commands.

    `place` is its function, as `module:function` in `dledger.commands.mqadmin`; it is imported when the
    command runs. `offline`: the command sends no request. `direct`: if -b is given, the command sends
    requests only to that broker.
    """

    name: str
    text: str
    options: Sequence[Option]
    place: str
    alias: str = ""
    offline: bool = False
    direct: bool = False

    @property
    def run(self) -> Callable[[Call], Awaitable[None]]:
        """Import and return the function that does the work of this command."""
        module, _, name = self.place.partition(":")
        found: Callable[[Call], Awaitable[None]] = getattr(
            import_module(f"dledger.commands.mqadmin.{module}"), name
        )
        return found
