"""`dledger admin namesrv`: settings and key-values of NameServers, and whether producers may write to a
broker."""

from __future__ import annotations

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError
from dledger.commands.admin.places import broker_groups
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.settings import change, side_by_side
from dledger.commands.admin.showing import Table


async def show_config(admin: AsyncAdminClient, told: Told) -> None:
    found = {address: await admin.namesrv.settings(address) for address in admin.namesrv.addresses}
    told.show({"namesrvs": found}, side_by_side(found))


async def set_config(admin: AsyncAdminClient, told: Told, key: str, value: str) -> None:
    places = admin.namesrv.addresses
    await change(told, admin.namesrv, places, key, value, one="NameServer", label="namesrv")


async def stop_writes(admin: AsyncAdminClient, told: Told, broker: str) -> None:
    await broker_groups(admin, None, broker)
    if not told.dry_run:
        told.agreed(f"Stop producers from writing to {broker}?")
    await _writes(admin, told, broker, wipe=True)


async def resume_writes(admin: AsyncAdminClient, told: Told, broker: str) -> None:
    await broker_groups(admin, None, broker)
    await _writes(admin, told, broker, wipe=False)


async def _writes(admin: AsyncAdminClient, told: Told, broker: str, wipe: bool) -> None:
    change = admin.namesrv.wipe_write_perm if wipe else admin.namesrv.add_write_perm
    counts = {}
    for address in admin.namesrv.addresses:
        counts[address] = 0 if told.dry_run else await change(address, broker)
    shown = ", ".join(f"{address}: {count} topics" for address, count in counts.items())
    verb = "producers may not write" if wipe else "producers may write"
    text = f"{broker}: {verb} to it ({'dry run: nothing is changed' if told.dry_run else shown})"
    told.show({"broker": broker, "topics": counts, "dryRun": told.dry_run}, text)


async def list_kv(admin: AsyncAdminClient, told: Told, namespace: str) -> None:
    found = await admin.namesrv.all_of(namespace)
    told.show(
        {"namespace": namespace, "values": found}, Table("", ("key", "value"), list(found.items()), "none")
    )


async def get_kv(admin: AsyncAdminClient, told: Told, namespace: str, key: str) -> None:
    value = await admin.namesrv.get(namespace, key)
    if value is None:
        known = list(await admin.namesrv.all_of(namespace))
        raise ClientError(f"there is no {key!r} in {namespace!r}{did_you_mean(key, known)}")
    told.show({"namespace": namespace, "key": key, "value": value}, value)


async def put_kv(admin: AsyncAdminClient, told: Told, namespace: str, key: str, value: str) -> None:
    before = await admin.namesrv.get(namespace, key)
    if not told.dry_run:
        await admin.namesrv.put(namespace, key, value)
    data = {"namespace": namespace, "key": key, "before": before, "after": value, "dryRun": told.dry_run}
    shown = [(namespace, key, "" if before is None else before, value)]
    told.show(data, Table("", ("namespace", "key", "before", "after"), shown))


async def delete_kv(admin: AsyncAdminClient, told: Told, namespace: str, key: str) -> None:
    before = await admin.namesrv.get(namespace, key)
    if before is None:
        raise ClientError(f"there is no {key!r} in {namespace!r}")
    if not told.dry_run:
        told.agreed(f"Remove {key} = {before} from {namespace}?")
        await admin.namesrv.delete(namespace, key)
    data = {"namespace": namespace, "key": key, "before": before, "dryRun": told.dry_run}
    told.show(data, f"{key} = {before}: {'would be removed' if told.dry_run else 'removed'}")
