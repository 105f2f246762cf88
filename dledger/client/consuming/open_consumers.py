"""The push consumers that are open in this process, by what must tell them apart.

Two with one name would both get everything, since the group counts them as one.
"""

from __future__ import annotations

from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.runtime.forks import FORKS

Name = tuple[int, tuple[str, ...], str, str]
"""Number of forks (a child begins anew), NameServers, client id, group."""


class OpenConsumers:
    """Their names. Consumers open and close on threads of their own: every step here is one of a dict's."""

    def __init__(self) -> None:
        self._open: dict[Name, object] = {}

    def take(self, core: ClientCore, group: str) -> Name:
        """Note a consumer; ClientError when there is one with its name already."""
        name = (FORKS.count, tuple(sorted(core.cluster_id)), core.client_id, group)
        if self._open.setdefault(name, core) is not core:
            raise ClientError(
                f"a consumer of the group {group!r} with the instance_name {core.options.instance_name!r} "
                "is open in this process: each would get every message; give them different names, or none"
            )
        return name

    def give_back(self, name: Name) -> None:
        """The consumer has ended."""
        self._open.pop(name, None)


OPEN_CONSUMERS = OpenConsumers()
"""Of this process."""
