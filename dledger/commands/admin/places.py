"""Finds the brokers that a command applies to: those of a cluster, of one broker group, or all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import master_of
from dledger.client import ClientError, NoBroker
from dledger.commands.admin.running import NotDone, did_you_mean
from dledger.remoting.bodies import BrokerData


async def broker_groups(
    admin: AsyncAdminClient, cluster: str | None = None, broker: str | None = None
) -> list[BrokerData]:
    """The broker groups of a cluster, or the one of this name, or all. ClientError when there is none."""
    view = await admin.brokers.cluster()
    if cluster is not None and cluster not in view.clusters():
        raise ClientError(f"there is no cluster {cluster!r}{did_you_mean(cluster, view.clusters())}")
    found = view.groups(cluster)
    if broker is not None:
        names = [group.brokerName for group in found]
        found = [one for one in found if broker == one.brokerName or broker in one.brokerAddrs.values()]
        if not found:
            raise ClientError(f"there is no broker {broker!r}{did_you_mean(broker, names)}")
    if not found:
        raise NoBroker("no broker is registered at the NameServer: start the brokers")
    return found


async def masters(
    admin: AsyncAdminClient, cluster: str | None = None, broker: str | None = None
) -> dict[str, str]:
    """Masters by broker name. NoBroker when a group has none and does not get one in time."""
    groups = await broker_groups(admin, cluster, broker)  # names first: what is not there is not waited for
    name = groups[0].brokerName if broker is not None else None
    return await admin.brokers.masters(cluster, name)


async def addresses(
    admin: AsyncAdminClient, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Addresses of all these brokers, or only the one whose address was given."""
    groups = await broker_groups(admin, cluster, broker)
    every = [address for group in groups for _, address in sorted(group.brokerAddrs.items())]
    return [broker] if broker in every else every


async def each(places: Iterable[str], do: Callable[[str], Awaitable[None]]) -> None:
    """Call `do` for each broker. When one fails, go on with the others, and raise NotDone at the end."""
    failures = []
    for address in places:
        try:
            await do(address)
        except ClientError as error:
            failures.append(str(error))
    if failures:
        raise NotDone("; ".join(failures))


def one_of(group: BrokerData) -> str:
    """The address to ask a broker group. ClientError when none of its brokers is registered."""
    address = master_of(group)
    if address is None:
        raise ClientError(f"no broker of {group.brokerName} is registered")
    return address
