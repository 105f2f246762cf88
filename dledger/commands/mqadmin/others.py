"""Commands of what a Raft group has none of: controllers, containers, static topics, RocksDB, cold reads.

Those that are one request are sent: Apache's servers answer, ours say why not. Those that need more, or read
files that only Apache's brokers have, say so.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from dledger.admin.asking import read_body
from dledger.admin.brokers import parse_settings
from dledger.client import ClientError
from dledger.client.encoding import received
from dledger.commands.mqadmin.call import BROKER, CLUSTER, GROUP, TOPIC, Call, Command, seconds
from dledger.commands.mqadmin.options import Option, WrongOptions
from dledger.formats.message_ids import host_text
from dledger.formats.record import CorruptRecord, decode_record
from dledger.remoting.apache_headers import (
    AddBrokerHeader,
    CleanBrokerDataHeader,
    CqWriteProgressHeader,
    ElectMasterHeader,
    ExportConfigHeader,
    MasterFlushOffsetHeader,
    RemoveBrokerHeader,
)
from dledger.remoting.bodies import BrokerMemberGroupBody
from dledger.remoting.codes import RequestCode
from dledger.remoting.frames import Fields

MONTH_MS = 30 * 86_400_000
CONFIG_TYPES = ("topics", "subscriptionGroups", "consumerOffsets")

Run = Callable[[Call], Awaitable[None]]


def _not_here(why: str) -> Run:
    async def refuse(call: Call) -> None:
        raise ClientError(why)

    return refuse


_ROCKSDB = (
    "RocksDB is not read here: its files are those of Apache's brokers with RocksDB, of which mqadmin 5 of "
    "RocketMQ has the library. Brokers of ours keep topics, groups and offsets in the replicated log:"
    " exportMetadata shows them"
)
_STATIC = (
    "static topics are maps of queues on brokers, changed in several steps: this command does none of it."
    " A topic's queues stay with their broker group here, whoever leads it"
)


async def _send(
    call: Call, address: str, code: RequestCode, header: Fields = None, body: bytes = b""
) -> dict[str, str]:
    return (await call.admin.brokers.other(address, code, header, body)).ext


async def add_broker(call: Call) -> None:
    container = call.given.text("c")
    await _send(call, container, RequestCode.ADD_BROKER, AddBrokerHeader(call.given.text("b")))
    call.out.line(f"add broker to {container} success")


async def remove_broker(call: Call) -> None:
    container, parts = call.given.text("c"), call.given.text("b").split(":")
    if len(parts) != 3 or not parts[2].strip().isdigit():
        raise WrongOptions("-b: give clusterName:brokerName:brokerId")
    header = RemoveBrokerHeader(parts[0].strip(), parts[1].strip(), int(parts[2]))
    await _send(call, container, RequestCode.REMOVE_BROKER, header)
    call.out.line(f"remove broker from {container} success")


async def reset_master_flush_offset(call: Call) -> None:
    if "b" not in call.given or "o" not in call.given:
        raise WrongOptions("Missing required options: b, o")
    offset = call.given.number("o")
    code = RequestCode.RESET_MASTER_FLUSH_OFFSET
    await _send(call, call.given.text("b"), code, MasterFlushOffsetHeader(offset))
    call.out.line(f"reset master flush offset to {offset} success")


def _controllers(call: Call) -> list[str]:
    return [address.strip() for address in call.given.text("a").split(";") if address.strip()]


async def controller_metadata(call: Call) -> None:
    ext = await _send(call, _controllers(call)[0], RequestCode.CONTROLLER_GET_METADATA_INFO)
    lines = [
        f"\n#ControllerGroup\t{ext.get('group')}",
        f"#ControllerLeaderId\t{ext.get('controllerLeaderId')}",
        f"#ControllerLeaderAddress\t{ext.get('controllerLeaderAddress')}",
        *(f"#Peer:\t{peer}" for peer in (ext.get("peers") or "").split(";") if peer),
    ]
    call.out.value("controller", ext, "\n".join(lines))


async def _controller_leader(call: Call) -> str:
    first = _controllers(call)[0]
    ext = await _send(call, first, RequestCode.CONTROLLER_GET_METADATA_INFO)
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
        await _send(call, address, RequestCode.UPDATE_CONTROLLER_CONFIG, None, f"{key}={value}\n".encode())

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
    await _send(call, await _controller_leader(call), RequestCode.CLEAN_BROKER_DATA, header)
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


async def _where(call: Call, slaves: bool) -> list[str]:
    return await (call.brokers() if slaves else call.masters())


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

    await call.each(await _where(call, True), show)


async def update_cold(call: Call) -> None:
    body = f"{call.given.text('g')}={call.given.text('v')}\n".encode()

    async def change(address: str) -> None:
        await _send(call, address, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, body)
        call.out.line(f"updateColdDataFlowCtrGroupConfig success, {address}")

    await call.each(await _where(call, False), change)


async def remove_cold(call: Call) -> None:
    async def change(address: str) -> None:
        code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        await _send(call, address, code, None, call.given.text("g").encode())
        call.out.line(f"remove broker cold read threshold success, {address}")

    await call.each(await _where(call, False), change)


async def read_ahead(call: Call) -> None:
    mode = call.given.text("m")
    if mode not in ("0", "1"):
        raise WrongOptions("set the read mode error; 0 is default, 1 random read")

    async def change(address: str) -> None:
        code = RequestCode.SET_COMMITLOG_READ_MODE
        answer = await call.admin.brokers.other(address, code, {"READ_AHEAD_MODE": mode})
        call.out.line(f" ============{address}============")
        call.out.line(f"commitLog set readAhead mode rstStr{answer.remark or 'null'}")

    await call.each(await _where(call, True), change)


async def switch_timer(call: Call) -> None:
    engine = call.given.text("e")
    if engine not in ("R", "F"):
        raise WrongOptions("-e: give R or F")

    async def change(address: str) -> None:
        await _send(call, address, RequestCode.SWITCH_TIMER_ENGINE, {"E_T": engine})
        call.out.line(f"switchTimerEngine to {engine} success, {address}")

    await call.each(await _where(call, False), change)


async def export_pop(call: Call) -> None:
    # Apache's takes `-d false` for the dry run, and does it without: here -d true is one.
    dry = call.given.true("d")
    view = await call.admin.brokers.cluster()

    async def export(address: str) -> None:
        if not dry:
            await _send(call, address, RequestCode.POP_ROLLBACK)
        name = view.name_of(address)
        call.out.line(
            f"Export broker records, brokerName={name}, brokerAddr={address}, dryRun={str(dry).lower()}"
        )

    await call.each(await _where(call, True), export)


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
        await _send(call, address, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)
        call.out.line(f"broker export done. {address}")

    await call.each(await _where(call, True), export)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ClientError(f"file {path}: {error.strerror}") from error


async def dump_compaction_log(call: Call) -> None:
    if "f" not in call.given:
        raise WrongOptions("miss dump log file name")
    path = call.given.text("f")
    data = _content(path)
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if not 0 < size <= len(data) - at:
            return
        try:
            record = decode_record(data, at)
        except CorruptRecord as error:
            raise ClientError(f"{path}, byte {at}: {error}") from error
        message = received(record, "")
        row = {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "msgId": message.message_id,
            "keys": message.keys,
            "storeTimestamp": record.store_timestamp,
            "storeHost": host_text(record.store_host),
            "bodySize": len(record.body),
        }
        call.out.item("messages", row, " ".join(f"{key}={value}" for key, value in row.items()))
        at += size


_CONTROLLER = Option("a", "controllerAddress", "Addresses of controllers, with ; between", required=True)
_CONTAINER = Option("c", "brokerContainerAddr", "Address of the container", required=True)
_BROKERS = (
    Option("c", "clusters", "Clusters, with commas between", one_of="where"),
    Option("b", "brokers", "Brokers, with commas between", one_of="where"),
    TOPIC,
)
_MAP = (Option("mf", "mapFile", "File of the map"), Option("fr", "forceReplace", "Replace the old map"))
_CONFIG = "topics, subscriptionGroups or consumerOffsets"

COMMANDS = (
    Command("addBroker", "Add a broker to a container", (
        _CONTAINER, Option("b", "brokerConfigPath", "The broker's configuration file, there", required=True),
    ), add_broker),
    Command("removeBroker", "Remove a broker from a container", (
        _CONTAINER, Option("b", "brokerIdentity", "As clusterName:brokerName:brokerId", required=True),
    ), remove_broker),
    Command("resetMasterFlushOffset", "Tell a slave how far its master is durable", (
        Option("b", "brokerAddr", "Address of the slave"), Option("o", "offset", "Byte of the log"),
    ), reset_master_flush_offset),
    Command("updateStaticTopic", "Create a static topic", (
        *_BROKERS, Option("qn", "totalQueueNum", "How many queues", required=True), *_MAP,
    ), _not_here(_STATIC), offline=True),
    Command("remappingStaticTopic", "Move the queues of a static topic", (*_BROKERS, *_MAP),
            _not_here(_STATIC), offline=True),
    Command("exportMetadataInRocksDB", "Show topics or groups of a RocksDB", (
        Option("p", "path", "Directory of the RocksDB", required=True),
        Option("t", "configType", "topics or subscriptionGroups", required=True),
        Option("j", "jsonEnable", "As JSON: true or false"),
    ), _not_here(_ROCKSDB), offline=True),
    Command("exportPopRecord", "Have brokers write what was popped to the log", (
        CLUSTER, BROKER, Option("d", "dryRun", "Only say what would be done: true or false"),
    ), export_pop),
    Command("getSyncStateSet", "Show which replicas are in step", (
        _CONTROLLER, CLUSTER, Option("b", "brokerName", "Broker name"),
        Option("i", "interval", "Has no effect: it looks once"),
    ), sync_state_set),
    Command("getControllerMetaData", "Show who is the controller", (_CONTROLLER,), controller_metadata),
    Command("getControllerConfig", "Show settings of controllers", (_CONTROLLER,), controller_config),
    Command("updateControllerConfig", "Change a setting of controllers", (
        _CONTROLLER, Option("k", "key", "Name of the setting", required=True),
        Option("v", "value", "Value", required=True),
    ), update_controller_config),
    Command("electMaster", "Have a broker become master", (
        _CONTROLLER, Option("b", "brokerId", "Number of the broker", required=True),
        Option("bn", "brokerName", "Broker name", required=True),
        Option("c", "clusterName", "Cluster name", required=True),
    ), elect_master),
    Command("cleanBrokerMetadata", "Have controllers forget a broker", (
        _CONTROLLER, Option("b", "brokerControllerIdsToClean", "Numbers of brokers, with ; between"),
        Option("bn", "brokerName", "Broker name", required=True), CLUSTER,
        Option("l", "cleanLivingBroker", "Also one that is there", value=False),
    ), clean_broker_metadata),
    Command("dumpCompactionLog", "Show the messages of a compaction log", (
        Option("f", "file", "The file"),
    ), dump_compaction_log, offline=True),
    Command("getColdDataFlowCtrInfo", "Show who reads cold data", (BROKER, CLUSTER), cold_info),
    Command("updateColdDataFlowCtrGroupConfig", "Limit a group's reads of cold data", (
        BROKER, CLUSTER, GROUP, Option("v", "threshold", "Bytes", required=True),
    ), update_cold),
    Command("removeColdDataFlowCtrGroupConfig", "Limit them no more", (BROKER, CLUSTER, GROUP), remove_cold),
    Command("setCommitLogReadAheadMode", "Say how the log is read ahead", (
        BROKER, CLUSTER,
        Option("m", "commitLogReadAheadMode", "0 as usual, 1 for random reads", required=True),
    ), read_ahead),
    Command("rocksDBConfigToJson", "Have brokers export their RocksDB", (
        Option("t", "configType", _CONFIG),
        Option("p", "configPath", "Directory of a RocksDB: not read here"),
        Option("e", "exportFile", "With -p: file to write"), Option("j", "jsonEnable", "With -p: as JSON"),
        Option("c", "cluster", "All brokers of this cluster"), BROKER,
    ), rocksdb_config),
    Command("checkRocksdbCqWriteProgress", "Compare RocksDB with files of ConsumeQueues", (
        Option("c", "cluster", "All brokers of this cluster", required=True),
        Option("t", "topic", "One topic"),
        Option("cf", "checkFrom", "Stored then or later, in ms since the epoch (default 30 days ago)"),
    ), cq_progress),
    Command("switchTimerEngine", "Say where timer messages wait", (
        BROKER, CLUSTER, Option("e", "engineType", "R for RocksDB, F for files", required=True),
    ), switch_timer),
)  # fmt: skip
