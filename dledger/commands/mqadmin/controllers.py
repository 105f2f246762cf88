"""Commands about the controllers of Apache RocketMQ, which elect masters and know which replicas are in
sync.

The commands only send the request. Apache's servers carry it out; this project's servers answer with the
reason why they refuse.
"""

from __future__ import annotations

import json

from dledger.admin.asking import read_body
from dledger.admin.brokers import parse_settings
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.other_servers import send
from dledger.remoting.apache_headers import (
    CleanBrokerDataHeader,
    ElectMasterHeader,
)
from dledger.remoting.bodies import BrokerMemberGroupBody
from dledger.remoting.codes import RequestCode


def _controllers(call: Call) -> list[str]:
    return [address.strip() for address in call.given.text("a").split(";") if address.strip()]


async def controller_metadata(call: Call) -> None:
    ext = await send(call, _controllers(call)[0], RequestCode.CONTROLLER_GET_METADATA_INFO)
    lines = [
        f"\n#ControllerGroup\t{ext.get('group')}",
        f"#ControllerLeaderId\t{ext.get('controllerLeaderId')}",
        f"#ControllerLeaderAddress\t{ext.get('controllerLeaderAddress')}",
        *(f"#Peer:\t{peer}" for peer in (ext.get("peers") or "").split(";") if peer),
    ]
    call.out.value("controller", ext, "\n".join(lines))


async def _controller_leader(call: Call) -> str:
    first = _controllers(call)[0]
    ext = await send(call, first, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return ext.get("controllerLeaderAddress") or first


async def controller_config(call: Call) -> None:
    async def show(address: str) -> None:
        answer = await call.admin.brokers.other(address, RequestCode.GET_CONTROLLER_CONFIG)
        settings = parse_settings(answer.body)
        lines = [f"============{address}============"]
        lines += [f"{key:<50}=  {value}" for key, value in settings.items()]
        call.out.item("controllers", {"address": address, "settings": settings}, "\n".join(lines))

    await call.each(_controllers(call), show)


async def update_controller_config(call: Call) -> None:
    key, value = call.given.text("k"), call.given.text("v")
    servers = _controllers(call)

    async def change(address: str) -> None:
        await send(call, address, RequestCode.UPDATE_CONTROLLER_CONFIG, None, f"{key}={value}\n".encode())

    if await call.each(servers, change):
        call.out.line(f"update controller config success![{', '.join(servers)}]\n{key} : {value}")


async def elect_master(call: Call) -> None:
    given = call.given
    header = ElectMasterHeader(given.text("c"), given.text("bn"), given.number("b"))
    leader = await _controller_leader(call)
    answer = await call.admin.brokers.other(leader, RequestCode.CONTROLLER_ELECT_MASTER, header)
    lines = [
        f"\n#ClusterName\t{header.clusterName}\n#BrokerName\t{header.brokerName}",
        f"#BrokerMasterAddr\t{answer.ext.get('masterAddress')}\n#MasterEpoch\t{answer.ext.get('masterEpoch')}",
        f"#SyncStateSetEpoch\t{answer.ext.get('syncStateSetEpoch')}",
    ]
    if answer.body:
        body = read_body("broker members", BrokerMemberGroupBody, answer.body)
        lines += [f"\t#Broker\t{one}\t{at}" for one, at in body.brokerMemberGroup.brokerAddrs.items()]
    call.out.value("elected", answer.ext, "\n".join(lines))


async def clean_broker_metadata(call: Call) -> None:
    given = call.given
    living = "l" in given
    if not living and "c" not in given:
        raise WrongOptions("cleanLivingBroker option is false, clusterName option can not be empty.")
    ids = given.maybe("b")
    if ids is not None and not all(one.strip().isdigit() for one in ids.split(";")):
        raise WrongOptions("please set the option <brokerControllerIdsToClean> according to the format")
    header = CleanBrokerDataHeader(given.text("bn"), given.maybe("c"), ids, living)
    await send(call, await _controller_leader(call), RequestCode.CLEAN_BROKER_DATA, header)
    call.out.line(f"clear broker {header.brokerName} metadata from controller success! ")


async def sync_state_set(call: Call) -> None:
    given = call.given
    if "b" in given:
        names = [given.text("b")]
    elif "c" in given:
        names = [group.brokerName for group in (await call.admin.brokers.cluster()).groups(given.text("c"))]
    else:
        raise WrongOptions("Missing required option: [-b,--brokerName, -c,--clusterName]")
    leader = await _controller_leader(call)
    body = json.dumps(names).encode()
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer = await call.admin.brokers.other(leader, code, None, body)
    found = read_body("sync state", dict[str, dict[str, dict[str, object]]], answer.body)
    for name, row in sorted(found.get("replicasInfoTable", {}).items()):
        call.out.item(
            "brokers", {"brokerName": name, **row}, f"\n#brokerName\t{name}\n{json.dumps(row, indent=1)}"
        )
