"""Settings of brokers and of NameServers: show them side by side, and change them while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dledger.client import ClientError
from dledger.commands.admin.places import each
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.showing import Table


class Configured(Protocol):
    """Interface to the settings of servers of one kind; `admin.brokers` and `admin.namesrv` implement it."""

    async def settings(self, address: str) -> dict[str, str]:
        """Return the settings that are in effect at the server with this address."""

    async def change_settings(self, address: str, properties: Mapping[str, str]) -> None:
        """Change some settings of the server with this address."""


def side_by_side(found: Mapping[str, Mapping[str, str]], empty: str = "none") -> Table:
    """Return a table of settings with one column for each address."""
    names = sorted({name for settings in found.values() for name in settings})
    rows = [(name, *(settings.get(name, "") for settings in found.values())) for name in names]
    return Table("", ("setting", *found), rows, empty)


async def change(
    told: Told, servers: Configured, places: Sequence[str], key: str, value: str, *, one: str, label: str
) -> None:
    """Show the present and the new value of a setting, ask, and change it at each server. `one` is the
    word for a server in texts, and `label` is the name of a server in the JSON."""
    rows = []
    for address in places:
        settings = await servers.settings(address)
        if key not in settings:
            raise ClientError(f"{address} has no setting {key!r}{did_you_mean(key, list(settings))}")
        rows.append((address, key, settings[key], value))
    table = Table("", (one, "setting", "before", "after"), rows)
    data = [{label: row[0], "setting": row[1], "before": row[2], "after": row[3]} for row in rows]
    if told.dry_run:
        told.show({"changes": data, "dryRun": True}, table)
        return
    if not told.as_json:
        told.show(None, table)
    told.agreed(f"Change {key} of {len(rows)} {one}s?")
    await each(places, lambda address: servers.change_settings(address, {key: value}))
    told.show({"changes": data, "dryRun": False}, "done")
