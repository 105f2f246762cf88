"""Finds the brokers that a command applies to: the brokers of one cluster, of one broker group, or all
brokers."""

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
    """Return the broker groups of a cluster, the broker group of one name, or all broker groups. Raises
    ClientError if there is none."""
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
    """Return the address of each master by broker name. Raises NoBroker if a group has no master and does
    not elect one in time."""
    groups = await broker_groups(admin, cluster, broker)  # so a wrong name fails at once
    name = groups[0].brokerName if broker is not None else None
    return await admin.brokers.masters(cluster, name)


async def addresses(
    admin: AsyncAdminClient, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Return the addresses of all brokers of these groups. If `broker` is the address of one broker,
    return only this address."""
    groups = await broker_groups(admin, cluster, broker)
    every = [address for group in groups for _, address in sorted(group.brokerAddrs.items())]
    return [broker] if broker in every else every


async def each(places: Iterable[str], do: Callable[[str], Awaitable[None]]) -> None:
    """Call `do` for each broker. If a call fails, the other brokers are still called, and NotDone is
    raised at the end."""
    failures = []
    for address in places:
        try:
            await do(address)
        except ClientError as error:
            failures.append(str(error))
    if failures:
        raise NotDone("; ".join(failures))


def one_of(group: BrokerData) -> str:
    """Return the address of one broker of a group, to which requests are sent. Raises ClientError if no
    broker of the group is registered."""
    address = master_of(group)
    if address is None:
        raise ClientError(f"no broker of {group.brokerName} is registered")
    return address
