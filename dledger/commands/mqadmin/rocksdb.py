"""Commands about data that Apache's brokers keep in RocksDB: topics, groups, offsets, ConsumeQueues,
timers, pops.

A command that needs one request sends it. Apache's servers carry it out; this project's servers answer
with the reason why they refuse. A command that would have to read RocksDB's files prints that this is not
supported.
"""

from __future__ import annotations

from dledger.admin.asking import read_body
from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.other_servers import addresses, send
from dledger.remoting.apache_headers import (
    CqWriteProgressHeader,
    ExportConfigHeader,
)
from dledger.remoting.codes import RequestCode

MONTH_MS = 30 * 86_400_000
CONFIG_TYPES = ("topics", "subscriptionGroups", "consumerOffsets")
_ROCKSDB = (
    "this command does not read RocksDB: use mqadmin of RocketMQ 5 for brokers of Apache RocketMQ "
    "with RocksDB. Brokers of ours keep topics, groups and offsets in the replicated log: "
    "exportMetadata shows them"
)


async def not_read(call: Call) -> None:
    raise ClientError(_ROCKSDB)


async def rocksdb_config(call: Call) -> None:
    given = call.given
    if "p" in given or ("b" not in given and "c" not in given):
        raise ClientError(_ROCKSDB)
    types = [given.text("t")] if "t" in given else list(CONFIG_TYPES)
    wrong = [one for one in types if one not in CONFIG_TYPES]
    if wrong:
        raise WrongOptions(
            f"Invalid configType: {wrong[0]} please input topics/subscriptionGroups/consumerOffsets "
        )

    async def export(address: str) -> None:
        header = ExportConfigHeader(";".join(types))
        await send(call, address, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)
        call.out.line(f"broker export done. {address}")

    await call.each(await addresses(call, True), export)


async def cq_progress(call: Call) -> None:
    given = call.given
    since = given.number("cf", call.admin.now_ms() - MONTH_MS)
    view = await call.admin.brokers.cluster()
    header = CqWriteProgressHeader(given.maybe("t") or "", since)

    async def check(address: str) -> None:
        code = RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS
        answer = await call.admin.brokers.other(address, code, header)
        found = read_body("check", dict[str, object], answer.body)
        row = {"brokerName": view.name_of(address), **found}
        call.out.item("brokers", row, f"{row['brokerName']} check: {found.get('checkResult')}")

    await call.each((await call.admin.brokers.masters(given.text("c"))).values(), check)


async def switch_timer(call: Call) -> None:
    engine = call.given.text("e")
    if engine not in ("R", "F"):
        raise WrongOptions("-e: give R or F")

    async def change(address: str) -> None:
        await send(call, address, RequestCode.SWITCH_TIMER_ENGINE, {"E_T": engine})
        call.out.line(f"switchTimerEngine to {engine} success, {address}")

    await call.each(await addresses(call, False), change)


async def export_pop(call: Call) -> None:
    # Apache's mqadmin takes `-d false` for a dry run. Here `-d true` is one.
    dry = call.given.true("d")
    view = await call.admin.brokers.cluster()

    async def export(address: str) -> None:
        if not dry:
            await send(call, address, RequestCode.POP_ROLLBACK)
        name = view.name_of(address)
        call.out.line(
            f"Export broker records, brokerName={name}, brokerAddr={address}, dryRun={str(dry).lower()}"
        )

    await call.each(await addresses(call, True), export)
