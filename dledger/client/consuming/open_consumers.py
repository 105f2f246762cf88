"""The push and lite pull consumers that are open in this process.

Brokers count two consumers with the same name in a group as one, so both would get the same queues and
receive every message. Therefore opening the second one is refused.
"""

from __future__ import annotations

from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.runtime.forks import FORKS

Name = tuple[int, tuple[str, ...], str, str]
"""What identifies an open consumer: number of forks (so that a child process starts with no names),
NameServers, client id, group."""


class OpenConsumers:
    """The names in use. Consumers open and close on any thread, so each step is one operation of a dict."""

    def __init__(self) -> None:
        self._open: dict[Name, object] = {}

    def register(self, core: ClientCore, group: str) -> Name:
        """Register a consumer. Raises ClientError if one of the same name is open already."""
        name = (FORKS.count, tuple(sorted(core.cluster_id)), core.client_id, group)
        if self._open.setdefault(name, core) is not core:
            raise ClientError(
                f"a consumer of the group {group!r} with the instance_name "
                f"{core.options.instance_name!r} is already open in this process, so each of them "
                "would receive every message: give them different instance names, or none"
            )
        return name

    def release(self, name: Name) -> None:
        """Remove a consumer that has ended."""
        self._open.pop(name, None)


OPEN_CONSUMERS = OpenConsumers()
"""The open consumers of this process."""
