"""`dledger admin offset`: show the consumer offsets of groups, and set them to other values."""

from __future__ import annotations

from datetime import datetime

from dledger.admin import AsyncAdminClient, OffsetChange, Refused
from dledger.admin.asking import passing_over
from dledger.admin.offsets import END, NOBODY
from dledger.client import ClientError
from dledger.client.times import MARKS, check_time, meant
from dledger.commands.admin.group import must_exist
from dledger.commands.admin.places import each
from dledger.commands.admin.running import Told
from dledger.commands.admin.showing import Table
from dledger.commands.mqadmin.call import human
from dledger.remoting.codes import ResponseCode

FIRST_MS = 100_000_000_000
"""A number of at least this value is a time in ms since 1970 (this one lies in 1973). A smaller number is
refused, because it was probably meant as an offset, which is written `offset:N`."""
COLUMNS = ("topic", "broker", "queue", "end", "before", "after", "messages")


async def show_offsets(admin: AsyncAdminClient, told: Told, name: str, topic: str | None) -> None:
    stats = await admin.offsets.stats(name, topic)
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.brokerName,
            "queue": queue.queueId,
            "end": row.brokerOffset,
            "offset": row.consumerOffset,
            "behind": row.brokerOffset - row.consumerOffset,
            "last": human(row.lastTimestamp) if row.lastTimestamp else None,
        }
        for queue, row in stats.offsets.items()
    ]
    told.show(
        {"group": name, "queues": rows, "behind": stats.behind},
        Table(
            "",
            ("topic", "broker", "queue", "end", "offset", "behind", "last consumed message"),
            [["" if value is None else value for value in row.values()] for row in rows],
        ),
        f"{stats.behind} messages behind",
    )


def when(
    text: str, now_ms: int, option: str = "--to", *, ahead: bool = False
) -> tuple[int | None, int | None]:
    """Parse an option that is a time or an offset. Returns (time in ms or END, None) for a time, and
    (None, offset) for an offset.

    Raises ClientError for any other text, and for a time in the future unless `ahead` is set.
    """
    timestamp, offset = _when(text, now_ms, option)
    if timestamp is None or timestamp in MARKS:
        return timestamp, offset
    check_time(timestamp, option, now_ms)
    if timestamp > now_ms and not ahead:
        raise ClientError(
            f"{option} {text}: this time lies in the future; give latest for the end of the queues"
        )
    return timestamp, offset


def _when(text: str, now_ms: int, option: str) -> tuple[int | None, int | None]:
    if text in ("earliest", "first"):
        return 0, None
    if text in ("latest", "last", "end"):
        return END, None
    if text == "now":
        return now_ms, None
    if text.startswith("offset:") and text.removeprefix("offset:").isdigit():
        return None, int(text.removeprefix("offset:"))
    if text.isdigit():
        if int(text) < FIRST_MS:
            raise ClientError(
                f"{option} {text}: give offset:{text}, or a time in ms since 1970: {meant(int(text), now_ms)}"
            )
        return int(text), None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    if text[:1] == "-" and text[-1:] in units and text[1:-1].isdigit():
        return now_ms - int(text[1:-1]) * units[text[-1]] * 1000, None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClientError(
            f"{option} {text}: give earliest, latest, now, a time (2026-05-01T12:00, ms since 1970), an age "
            "(-30m, -2h, -1d), or offset:N with --queue"
        ) from error
    return int(moment.astimezone().timestamp() * 1000), None


async def reset(
    admin: AsyncAdminClient,
    told: Told,
    name: str,
    topic: str,
    target: str,
    queue: int | None,
    broker: str | None,
    only_back: bool,
) -> None:
    timestamp, offset = when(target, admin.now_ms())
    if offset is not None and queue is None:
        raise ClientError("--to offset:N needs one queue: give --queue")
    places = await admin.offsets.brokers_of(topic)
    if broker is not None:
        if broker not in places:
            raise ClientError(f"no broker {broker!r} has the topic {topic}: {', '.join(places)}")
        places = {broker: places[broker]}
    if queue is not None and len(places) > 1:
        raise ClientError(f"--queue needs a broker (--broker): {', '.join(places)}")
    await must_exist(admin, name)
    changes: list[tuple[str, OffsetChange]] = []
    for address in places.values():
        time = END if timestamp is None else timestamp
        for one in await admin.offsets.changes(address, name, topic, time, force=not only_back):
            if queue is None or one.queue.queueId == queue:
                end = one if offset is None else _to_offset(one, offset)
                changes.append((address, end))
    if queue is not None and not changes:
        raise ClientError(f"{topic} has no queue {queue} at {', '.join(places)}")
    rows = [_row(change) for _, change in changes]
    table = Table(
        f"{name} in {topic}" + (" (dry run: nothing is changed)" if told.dry_run else ""),
        COLUMNS,
        [_shown(row) for row in rows],
        "this queue does not exist",
    )
    data = {"group": name, "topic": topic, "queues": rows, "dryRun": told.dry_run}
    if told.dry_run or not rows:
        told.show(data, table)
        return
    if not told.as_json:
        told.show(None, table)
    told.agreed(f"Move {name} to these offsets? Its running consumers follow.")
    unknown: list[str] = []
    for broker_name, address in places.items():
        try:
            await _reset(admin, address, name, topic, timestamp, offset, queue, not only_back)
        except Refused as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            unknown.append(broker_name)
    if unknown:
        raise ClientError(
            f"{name} is unknown at {', '.join(unknown)} and was reset only at the other brokers"
        )
    told.show(data, f"{name}: {len(rows)} queues of {topic} were reset")


def _to_offset(change: OffsetChange, offset: int) -> OffsetChange:
    return OffsetChange(change.queue, change.end, change.before, offset, offset)


def _row(change: OffsetChange) -> dict[str, object]:
    """Return one row of the JSON output. Its field `again` is the number of messages that will be consumed
    again; it is negative if messages are skipped."""
    before = change.before if change.before >= 0 else None
    return {
        "topic": change.queue.topic,
        "broker": change.queue.brokerName,
        "queue": change.queue.queueId,
        "end": change.end,
        "before": before,
        "after": change.after,
        "again": None if before is None else before - change.after,
    }


def _shown(row: dict[str, object]) -> list[object]:
    again = row["again"]
    text = (
        ""
        if not isinstance(again, int) or not again
        else f"{abs(again)} {'again' if again > 0 else 'skipped'}"
    )
    return ["" if value is None else value for value in [*row.values()][:-1]] + [text]


async def _anybody(admin: AsyncAdminClient, name: str) -> bool:
    """Return whether any consumer of the group is online."""
    with passing_over(*NOBODY):
        return bool((await admin.groups.connections(name)).connectionSet)
    return False


async def _reset(
    admin: AsyncAdminClient,
    address: str,
    name: str,
    topic: str,
    timestamp: int | None,
    offset: int | None,
    queue: int | None,
    force: bool,
) -> None:
    try:
        if queue is None:
            await admin.offsets.reset(
                address, name, topic, END if timestamp is None else timestamp, force=force
            )
            return
        if offset is None:
            for one in await admin.offsets.changes(address, name, topic, timestamp or 0, force=force):
                if one.queue.queueId == queue:
                    offset = one.after
        await admin.offsets.reset(address, name, topic, 0, queue_id=queue, offset=offset)
    except Refused as error:
        # Apache's brokers have this for groups with consumers alone: without any, each offset is set.
        if queue is not None or await _anybody(admin, name):
            raise error
        time = END if timestamp is None else timestamp
        await admin.offsets.reset_offline(address, name, topic, time, force=force)


async def clone(admin: AsyncAdminClient, told: Told, source: str, target: str, topic: str | None) -> None:
    await must_exist(admin, source)
    stats = await admin.offsets.stats(source, topic)
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.brokerName,
            "queue": queue.queueId,
            "after": row.consumerOffset,
        }
        for queue, row in stats.offsets.items()
        if row.consumerOffset >= 0 and topic in (None, queue.topic)
    ]
    table = Table(f"{target}", ("topic", "broker", "queue", "after"), [list(row.values()) for row in rows])
    data = {"group": target, "queues": rows, "dryRun": told.dry_run}
    if told.dry_run:
        told.show(data, table)
        return
    if not told.as_json:
        told.show(None, table)
    told.agreed(f"Move {target} to these offsets?")
    places: dict[str, str] = {}
    for one in dict.fromkeys(str(row["topic"]) for row in rows):
        places |= await admin.offsets.brokers_of(one)
    for queue, row in stats.offsets.items():
        if row.consumerOffset >= 0 and topic in (None, queue.topic):
            await each(
                [places[queue.brokerName]],
                lambda address, queue=queue, row=row: admin.offsets.commit(  # type: ignore[misc]
                    address, target, queue, row.consumerOffset
                ),
            )
    told.show(data, f"{target}: {len(rows)} queues")
