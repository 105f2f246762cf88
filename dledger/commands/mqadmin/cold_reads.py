"""Commands about cold reads: reads of data that is not in memory, which Apache's brokers can limit.

The commands only send the request. Apache's servers carry it out; this project's servers answer with the
reason why they refuse.
"""

from __future__ import annotations

import json

from dledger.admin.asking import read_body
from dledger.commands.mqadmin.call import Call, seconds
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.other_servers import addresses, send
from dledger.remoting.codes import RequestCode


async def cold_info(call: Call) -> None:
    async def show(address: str) -> None:
        answer = await call.admin.brokers.other(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        table = read_body("cold reads", dict[str, object], answer.body) if answer.body else {}
        rows = table.get("runtimeTable")
        for row in rows.values() if isinstance(rows, dict) else ():
            for name in ("lastColdReadTime", "createTime"):
                if f"{name}Mills" in row:
                    row[f"{name}Format"] = seconds(int(row.pop(f"{name}Mills")))
        text = f" ============{address}============\n{json.dumps(table, indent=1)}"
        call.out.item("brokers", {"address": address, **table}, text)

    await call.each(await addresses(call, True), show)


async def update_cold(call: Call) -> None:
    body = f"{call.given.text('g')}={call.given.text('v')}\n".encode()

    async def change(address: str) -> None:
        await send(call, address, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, body)
        call.out.line(f"updateColdDataFlowCtrGroupConfig success, {address}")

    await call.each(await addresses(call, False), change)


async def remove_cold(call: Call) -> None:
    async def change(address: str) -> None:
        code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        await send(call, address, code, None, call.given.text("g").encode())
        call.out.line(f"remove broker cold read threshold success, {address}")

    await call.each(await addresses(call, False), change)


async def read_ahead(call: Call) -> None:
    mode = call.given.text("m")
    if mode not in ("0", "1"):
        raise WrongOptions("set the read mode error; 0 is default, 1 random read")

    async def change(address: str) -> None:
        code = RequestCode.SET_COMMITLOG_READ_MODE
        answer = await call.admin.brokers.other(address, code, {"READ_AHEAD_MODE": mode})
        call.out.line(f" ============{address}============")
        call.out.line(f"commitLog set readAhead mode rstStr{answer.remark or 'null'}")

    await call.each(await addresses(call, True), change)
