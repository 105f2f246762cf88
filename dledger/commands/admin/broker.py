"""`dledger admin broker`: list brokers, show their figures and settings, change a setting."""

from __future__ import annotations

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError
from dledger.commands.admin.places import addresses, broker_groups, each, masters
from dledger.commands.admin.running import Told
from dledger.commands.admin.settings import change, side_by_side
from dledger.commands.admin.showing import Table
from dledger.commands.mqadmin.brokers import number
from dledger.remoting.bodies import MASTER_ID


async def list_brokers(admin: AsyncAdminClient, told: Told) -> None:
    rows = []
    for data in await broker_groups(admin):
        for broker_id, address in sorted(data.brokerAddrs.items()):
            try:
                figures = await admin.brokers.runtime(address)
            except ClientError as error:
                figures = {"problem": str(error)}
            rows.append(
                {
                    "cluster": data.cluster,
                    "broker": data.brokerName,
                    "id": broker_id,
                    "role": "master" if broker_id == MASTER_ID else "slave",
                    "address": address,
                    "version": figures.get("brokerVersionDesc"),
                    "putTps": _rate(figures.get("putTps")),
                    "getTps": _rate(figures.get("getTransferredTps")),
                    "disk": figures.get("commitLogDiskRatio"),
                    "problem": figures.get("problem"),
                }
            )
    columns = ("cluster", "broker", "id", "role", "address", "version", "put/s", "get/s", "disk", "")
    told.show(
        {"brokers": rows},
        Table("", columns, [["" if value is None else value for value in row.values()] for row in rows]),
    )


def _rate(text: str | None) -> float:
    parts = (text or "").split()  # Apache's slaves report none
    return number(parts[0]) if parts else 0.0


async def show_broker(admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None) -> None:
    places = await addresses(admin, cluster, broker)
    chosen = places if broker in places else list((await masters(admin, cluster, broker)).values())
    shown = {address: await admin.brokers.runtime(address) for address in chosen}
    told.show(
        {"brokers": shown},
        *(Table(address, ("figure", "value"), list(figures.items())) for address, figures in shown.items()),
    )


async def show_config(
    admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None, key: str | None
) -> None:
    places = await addresses(admin, cluster, broker)
    found = {address: await admin.brokers.settings(address) for address in places}
    if key is not None:
        wanted = key.lower()
        found = {
            address: {name: value for name, value in settings.items() if wanted in name.lower()}
            for address, settings in found.items()
        }
    told.show({"brokers": found}, side_by_side(found, "no setting with this name"))


async def set_config(
    admin: AsyncAdminClient, told: Told, key: str, value: str, cluster: str | None, broker: str | None
) -> None:
    places = await addresses(admin, cluster, broker)
    await change(told, admin.brokers, places, key, value, one="broker", label="broker")


async def replication(admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None) -> None:
    rows, terms, data = [], [], []
    for name, address in (await masters(admin, cluster, broker)).items():
        status, epochs = await admin.brokers.ha_status(address), await admin.brokers.epochs(address)
        data.append(
            {
                "broker": name,
                "status": msgspec.to_builtins(status),
                "epochs": msgspec.to_builtins(epochs.epochList),
            }
        )
        rows.append((name, address, "master", status.masterCommitLogMaxOffset, 0, True))
        rows += [
            (name, one.addr, "slave", one.slaveAckOffset, one.diff, one.inSync)
            for one in status.haConnectionInfo
        ]
        terms += [(name, one.epoch, one.startOffset, one.endOffset) for one in epochs.epochList]
    told.show(
        {"brokers": data},
        Table("bytes of the log", ("broker", "address", "role", "has", "behind", "in sync"), rows),
        Table("terms", ("broker", "term", "from byte", "to byte"), terms),
    )


async def clean(admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None) -> None:
    places = await addresses(admin, cluster, broker)
    await each(places, admin.brokers.delete_expired)
    told.show({"brokers": places}, f"{', '.join(places)}: the search for expired segments has started")
