"""Commands about brokers, such as brokerStatus, clusterList and updateBrokerConfig."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call, human
from dledger.commands.mqadmin.output import Table
from dledger.remoting.bodies import MASTER_ID

CLUSTERS = Table.of(
    "brokers",
    ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)",
     "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED"),
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s",
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s",
)  # fmt: skip
TOTALS = Table.of(
    "brokers",
    ("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"),
    "%-16s  %-32s %14s %14s %14s %14s",
)
FOLLOWERS = Table.of(
    "slaves",
    ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere"),
    "%-32s  %-16s %16s %16s %16s %16s",
)


async def broker_status(call: Call) -> None:
    by_cluster = "b" not in call.given

    async def show(address: str) -> None:
        figures = await call.admin.brokers.runtime(address)
        before = f"{address:<24} " if by_cluster else ""
        lines = [f"{before}{key:<32}: {value}" for key, value in figures.items()]
        call.out.item("brokers", {"address": address, **figures}, "\n".join(lines))

    await call.each(await call.brokers(), show)


async def broker_config(call: Call) -> None:
    async def show(address: str, title: str) -> None:
        settings = await call.admin.brokers.settings(address)
        lines = [title, *(f"{key:<50}=  {value}" for key, value in settings.items()), ""]
        call.out.item("brokers", {"address": address, "settings": settings}, "\n".join(lines))

    await _with_titles(call, show)


async def _with_titles(call: Call, show: Callable[[str, str], Awaitable[None]]) -> None:
    """Show brokers one by one. Above each broker is a line that says whether it is a master, or the slave
    of which master."""
    if "b" in call.given:
        address = call.given.text("b")
        await show(address, f"============{address}============")
        return
    for group in (await call.admin.brokers.cluster()).groups(call.given.maybe("c")):
        master = group.brokerAddrs.get(MASTER_ID, "NO_MASTER")
        for number, address in sorted(group.brokerAddrs.items()):
            title = f"============Master: {address}============"
            if number != MASTER_ID:
                title = f"============My Master: {master}=====Slave: {address}============"
            await call.each([address], lambda at, title=title: show(at, title))  # type: ignore[misc]


async def update_broker_config(call: Call) -> None:
    key, value = call.given.text("k"), call.given.text("v")

    async def change(address: str) -> None:
        await call.admin.brokers.change_settings(address, {key: value})
        call.out.line(f"update broker config success, {address}")

    # Also without -a: who leads next would go back to what its file says.
    await call.each(await call.brokers(), change)


async def cluster_list(call: Call) -> None:
    pause_s = call.given.number("i")
    while True:
        await _list_once(call)
        call.out.end_round()
        if "i" not in call.given:
            return
        await asyncio.sleep(pause_s)


async def _list_once(call: Call) -> None:
    view = await call.admin.brokers.cluster()
    totals = "m" in call.given
    call.out.head(TOTALS if totals else CLUSTERS)
    wanted = call.given.maybe("c")
    for cluster in [wanted] if wanted else view.clusters():
        for group in view.groups(cluster):
            for number, address in sorted(group.brokerAddrs.items()):
                try:
                    figures = await call.admin.brokers.runtime(address)
                except ClientError as error:
                    call.fail(error)
                    figures = {}
                if totals:
                    call.out.row(TOTALS, cluster, group.brokerName, *_totals(figures))
                else:
                    shown = _figures(figures, call.admin.now_ms())
                    call.out.row(CLUSTERS, cluster, group.brokerName, number, address, *shown)


def whole(text: str | None) -> int:
    """Return the whole number in a text; 0 if the text is not one."""
    return int(text) if text and text.lstrip("-").isdecimal() else 0


def number(text: str) -> float:
    """Return the number in a text, which may have a fraction; 0 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _totals(figures: Mapping[str, str]) -> tuple[int, ...]:
    def count(name: str) -> int:
        return whole(figures.get(name))

    put_today, get_today = count("msgPutTotalTodayMorning"), count("msgGetTotalTodayMorning")
    return (
        put_today - count("msgPutTotalYesterdayMorning"),
        get_today - count("msgGetTotalYesterdayMorning"),
        count("msgPutTotalTodayNow") - put_today,
        count("msgGetTotalTodayNow") - get_today,
    )


def _figures(figures: Mapping[str, str], now_ms: int) -> tuple[str, ...]:
    def rate(*names: str) -> float:
        found = " ".join(figures.get(name, "") for name in names).split()  # Apache's slaves report none
        return number(found[0]) if found else 0.0

    def load(name: str) -> str:
        size, waited = (
            figures.get(f"{name}ThreadPoolQueueSize", "N"),
            f"{name}ThreadPoolQueueHeadWaitTimeMills",
        )
        return f"{size},{figures.get(waited, 'N')}ms"

    oldest = whole(figures.get("earliestMessageTimeStamp"))
    hours = (now_ms - oldest) / 3_600_000 if oldest > 0 else 0.0
    congested = whole(figures.get("timerCongestNum")) / 10_000
    timer = (
        f"{figures.get('timerReadBehind', '0')}-{figures.get('timerOffsetBehind', '0')}"
        f"({congested:.1f}w, {rate('timerEnqueueTps'):.1f}, {rate('timerDequeueTps'):.1f})"
    )
    return (
        figures.get("brokerVersionDesc", ""),
        f"{rate('putTps'):9.2f}({load('send')})",
        f"{rate('getTransferredTps', 'getTransferedTps'):9.2f}({load('pull')}|{load('ack')})",
        timer,
        figures.get("pageCacheLockTimeMills", ""),
        f"{hours:2.2f}",
        f"{rate('commitLogDiskRatio'):.4f}",
        figures.get("brokerActive", "false"),
    )


async def ha_status(call: Call) -> None:
    await _repeatedly(call, call.masters, lambda address: _ha_status(call, address))


async def broker_epoch(call: Call) -> None:
    async def brokers() -> list[str]:
        view = await call.admin.brokers.cluster()
        if "b" in call.given:
            return [at for _, at in sorted(view.group(call.given.text("b")).brokerAddrs.items())]
        return view.addresses(call.given.text("c"))

    await _repeatedly(call, brokers, lambda address: _epochs(call, address))


async def _repeatedly(
    call: Call, addresses: Callable[[], Awaitable[list[str]]], show: Callable[[str], Awaitable[None]]
) -> None:
    pause_s = call.given.number("i", 3)
    while True:
        await call.each(await addresses(), show)
        call.out.end_round()
        if "i" not in call.given:
            return
        await asyncio.sleep(pause_s)


async def _ha_status(call: Call, address: str) -> None:
    found = await call.admin.brokers.ha_status(address)
    if call.out.as_json:
        call.out.item("brokers", {"address": address, **msgspec.to_builtins(found)}, "")
        return
    if not found.master:
        client = found.haClientRuntimeInfo
        call.out.line(f"\n#MasterAddr\t{client.masterAddr}\n#CommitLogMaxOffset\t{client.maxOffset}")
        call.out.line(f"#TransferSpeed(KB/s)\t{client.transferredByteInSecond / 1024:.2f}")
        call.out.line(f"#LastReadTime\t{human(client.lastReadTimestamp)}")
        call.out.line(f"#LastWriteTime\t{human(client.lastWriteTimestamp)}")
        call.out.line(f"#MasterFlushOffset\t{client.masterFlushOffset}")
        return
    call.out.line(f"\n#MasterAddr\t{address}\n#MasterCommitLogMaxOffset\t{found.masterCommitLogMaxOffset}")
    call.out.line(f"#SlaveNum\t{len(found.haConnectionInfo)}\n#InSyncSlaveNum\t{found.inSyncSlaveNums}")
    call.out.head(FOLLOWERS)
    for one in found.haConnectionInfo:
        speed, status = f"{one.transferredByteInSecond / 1024:.2f}", "OK" if one.inSync else "Fall Behind"
        call.out.row(FOLLOWERS, one.addr, one.slaveAckOffset, one.diff, speed, status, one.transferFromWhere)


async def _epochs(call: Call, address: str) -> None:
    found = await call.admin.brokers.epochs(address)
    if found.epochList:
        found.epochList[-1].endOffset = found.maxOffset
    lines = [
        f"\n#clusterName\t{found.clusterName}\n#brokerName\t{found.brokerName}\n#brokerAddr\t{address}",
        f"#brokerId\t{found.brokerId}",
        *(
            f"#Epoch: EpochEntry{{epoch={one.epoch}, startOffset={one.startOffset}, "
            f"endOffset={one.endOffset}}}"
            for one in found.epochList
        ),
    ]
    call.out.item("brokers", {"address": address, **msgspec.to_builtins(found)}, "\n".join(lines))


def _cleaning(what: str) -> Callable[[Call], Awaitable[None]]:
    async def clean(call: Call) -> None:
        brokers = call.admin.brokers
        do = {
            "queues": brokers.clean_consume_queues,
            "topics": brokers.clean_unused_topics,
            "log": brokers.delete_expired,
        }[what]
        address = call.given.maybe("b")
        places = [address] if address is not None else []
        if address is None:
            places = (await brokers.cluster()).addresses(call.given.maybe("c"))
        worked = await call.each(places, do)
        call.out.line("success" if worked else "false")

    return clean


clean_queues, clean_log, clean_topics = _cleaning("queues"), _cleaning("log"), _cleaning("topics")
