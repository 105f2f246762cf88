"""`dledger admin broker`: list brokers, show their figures and settings, change a setting."""

from __future__ import annotations

import click
import msgspec

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError
from dledger.commands.admin.places import addresses, broker_groups, each, masters, where
from dledger.commands.admin.running import Told, command, group
from dledger.commands.admin.settings import change, side_by_side
from dledger.commands.admin.showing import Table
from dledger.commands.mqadmin.brokers import number
from dledger.remoting.bodies import MASTER_ID

BROKER = group("broker", "Brokers: list, show, config, set, replication, clean.")


def _place() -> click.Argument:
    return click.Argument(["broker"], metavar="BROKER", required=False)


@command(BROKER, "list", "List brokers with their figures.")
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
    parts = (text or "").split()  # Apache's slaves say nothing
    return number(parts[0]) if parts else 0.0


@command(BROKER, "show", "Show all figures of a broker (by name: of its master).", _place(), *where()[:1])
async def show_broker(admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None) -> None:
    places = await addresses(admin, cluster, broker)
    chosen = places if broker in places else list((await masters(admin, cluster, broker)).values())
    shown = {address: await admin.brokers.runtime(address) for address in chosen}
    told.show(
        {"brokers": shown},
        *(Table(address, ("figure", "value"), list(figures.items())) for address, figures in shown.items()),
    )


@command(
    BROKER,
    "config",
    "Show settings of brokers.",
    _place(),
    *where()[:1],
    click.Option(["--key"], help="Only settings with this in their name."),
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
    told.show({"brokers": found}, side_by_side(found, "no such setting"))


@command(
    BROKER,
    "set",
    "Change a setting of brokers while they run.",
    click.Argument(["key"], metavar="KEY"),
    click.Argument(["value"], metavar="VALUE"),
    *where(),
    changes=True,
)
async def set_config(
    admin: AsyncAdminClient, told: Told, key: str, value: str, cluster: str | None, broker: str | None
) -> None:
    places = await addresses(admin, cluster, broker)
    await change(told, admin.brokers, places, key, value, one="broker", label="broker")


@command(
    BROKER,
    "replication",
    "Show how far followers are, and which terms wrote the log.",
    _place(),
    *where()[:1],
)
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
        Table("bytes of the log", ("broker", "address", "role", "has", "behind", "in step"), rows),
        Table("terms", ("broker", "term", "from byte", "to byte"), terms),
    )


@command(BROKER, "clean", "Remove segments that are older than they are kept, now.", _place(), *where()[:1])
async def clean(admin: AsyncAdminClient, told: Told, broker: str | None, cluster: str | None) -> None:
    places = await addresses(admin, cluster, broker)
    await each(places, admin.brokers.delete_expired)
    told.show({"brokers": places}, f"{', '.join(places)}: asked to look")
