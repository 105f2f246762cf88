"""Commands about broker containers, and about settings of a slave's master. Only Apache RocketMQ has
these.

The commands only send the request. Apache's servers carry it out; this project's servers answer with the
reason why they refuse.
"""

from __future__ import annotations

from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.other_servers import send
from dledger.remoting.apache_headers import (
    AddBrokerHeader,
    MasterFlushOffsetHeader,
    RemoveBrokerHeader,
)
from dledger.remoting.codes import RequestCode


async def add_broker(call: Call) -> None:
    container = call.given.text("c")
    await send(call, container, RequestCode.ADD_BROKER, AddBrokerHeader(call.given.text("b")))
    call.out.line(f"add broker to {container} success")


async def remove_broker(call: Call) -> None:
    container, parts = call.given.text("c"), call.given.text("b").split(":")
    if len(parts) != 3 or not parts[2].strip().isdigit():
        raise WrongOptions("-b: give clusterName:brokerName:brokerId")
    header = RemoveBrokerHeader(parts[0].strip(), parts[1].strip(), int(parts[2]))
    await send(call, container, RequestCode.REMOVE_BROKER, header)
    call.out.line(f"remove broker from {container} success")


async def reset_master_flush_offset(call: Call) -> None:
    if "b" not in call.given or "o" not in call.given:
        raise WrongOptions("Missing required options: b, o")
    offset = call.given.number("o")
    code = RequestCode.RESET_MASTER_FLUSH_OFFSET
    await send(call, call.given.text("b"), code, MasterFlushOffsetHeader(offset))
    call.out.line(f"reset master flush offset to {offset} success")
