"""Commands that write the state of a cluster to JSON files: exportConfigs, exportMetadata, exportMetrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX, passing_over
from dledger.admin.offsets import NOBODY
from dledger.client import ClientError
from dledger.commands.declared.mqadmin.exports import DIRECTORY
from dledger.commands.mqadmin.brokers import number, whole
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.versions import version_name
from dledger.remoting.codes import VERSION, ResponseCode
from dledger.remoting.operator_bodies import BrokerStatsData

EXPORTED = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip
"""Names of the broker settings that exportConfigs writes."""
SYSTEM_GROUPS = (
    "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
)  # fmt: skip
SYSTEM_PREFIXES = ("CID_RMQ_SYS_", "rmq_sys_")
RANDOM_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
"""Topics whose rates exportMetrics counts separately from the rates of all other topics."""


def _write(call: Call, name: str, value: object) -> None:
    path = Path(call.given.maybe("f") or DIRECTORY) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent="\t", sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from error
    call.out.value("path", str(path), f"export {path} success")


async def configs(call: Call) -> None:
    groups = (await call.admin.brokers.cluster()).groups(call.given.text("c"))
    shown: dict[str, dict[str, str]] = {}
    masters = list((await call.admin.brokers.masters(call.given.text("c"))).values())
    for address in masters:
        settings = await call.admin.brokers.settings(address)
        kept = {key: settings[key] for key in EXPORTED if key in settings}
        shown[settings.get("brokerName", address)] = kept
    scale = {
        "namesrvSize": len(call.admin.namesrv.addresses),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": sum(len(group.brokerAddrs) for group in groups) - len(masters),
    }
    _write(call, "configs.json", {"brokerConfigs": shown, "clusterScale": scale})


async def _topics(call: Call, address: str, special: bool) -> dict[str, dict[str, Any]]:
    table = await call.admin.topics.configs(address)
    own = set(await call.admin.topics.system_names(address))
    return {
        name: msgspec.to_builtins(config)
        for name, config in sorted(table.topicConfigTable.items())
        if name not in own
        and not name.startswith("rmq_sys_")
        and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    }


async def _groups(call: Call, address: str) -> dict[str, dict[str, Any]]:
    return {
        name: msgspec.to_builtins(config)
        for name, config in (await call.admin.groups.configs(address)).items()
        if name not in SYSTEM_GROUPS and not name.startswith(SYSTEM_PREFIXES)
    }


async def metadata(call: Call) -> None:
    given, special = call.given, "s" in call.given
    if "b" not in given and "c" not in given:
        raise WrongOptions("Missing required option: [-b,--brokerAddr, -c,--clusterName]")
    topics: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for address in await call.masters():
        for table, rows, summed in (
            (topics, await _topics(call, address, special), ("readQueueNums", "writeQueueNums")),
            (groups, await _groups(call, address), ("retryQueueNums",)),
        ):
            for name, row in rows.items():
                before = table.get(name)
                for key in summed if before is not None else ():
                    row[key] += before[key]  # type: ignore[index]
                table[name] = row
    found: dict[str, object] = {"exportTime": call.admin.now_ms()}
    if "t" in given:
        _write(call, "topic.json", {**found, "topicConfigTable": topics})
    elif "g" in given:
        _write(call, "subscriptionGroup.json", {**found, "subscriptionGroupTable": groups})
    else:
        both = {"topicConfigTable": topics, "subscriptionGroupTable": groups}
        _write(call, "metadata.json", {**found, **both})


async def metrics(call: Call) -> None:
    await call.admin.brokers.masters(call.given.text("c"))
    view = await call.admin.brokers.cluster()
    report: dict[str, object] = {}
    tps: dict[str, float] = {}
    day: dict[str, float] = {}
    for group in view.groups(call.given.text("c")):
        address = group.brokerAddrs[0]
        figures = await call.admin.brokers.runtime(address)
        settings = await call.admin.brokers.settings(address)
        groups = await _groups(call, address)
        rates = await _rates(call, address, figures)
        for total, found, kind in ((tps, rates["tps"], "total"), (day, rates["oneDayNum"], "total")):
            for name, value in found.items():
                key = kind + name[0].upper() + name[1:]
                total[key] = total.get(key, 0) + value
        report[group.brokerName] = {
            "runtimeEnv": {
                "cpuNum": settings.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": figures.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {
                    name: figures.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
                },
                **rates,
                "messageAverageSize": figures.get("putMessageAverageSize"),
                "topicSize": len(await _topics(call, address, False)),
                "groupSize": len(groups),
            },
            "runtimeVersion": {
                "rocketmqVersion": version_name(VERSION),
                "clientInfo": await _clients(call, list(groups)),
            },
        }
    _write(
        call,
        "metrics.json",
        {"evaluateReport": report, "totalData": {"totalTps": tps, "totalOneDayNum": day}},
    )


async def _rates(call: Call, address: str, figures: Mapping[str, str]) -> dict[str, dict[str, float]]:
    counted = []
    for topic in RANDOM_TOPICS:
        found = BrokerStatsData()
        with passing_over(ResponseCode.SYSTEM_ERROR):  # it counted nothing of that
            found = await call.admin.brokers.stats(address, "TOPIC_PUT_NUMS", topic)
        counted.append(found)
    half, delayed = counted

    def first(name: str) -> float:
        parts = figures.get(name, "").split()
        return number(parts[0]) if parts else 0.0

    def yesterday(kind: str) -> int:
        today, before = (whole(figures.get(f"msg{kind}Total{day}Morning")) for day in ("Today", "Yesterday"))
        return today - before

    return {
        "tps": {
            "normalInTps": first("putTps"),
            "normalOutTps": first("getTransferredTps"),
            "transInTps": half.statsMinute.tps,
            "scheduleInTps": delayed.statsMinute.tps,
        },
        "oneDayNum": {
            "normalOneDayInNum": yesterday("Put"),
            "normalOneDayOutNum": yesterday("Get"),
            "transOneDayInNum": half.last_day,
            "scheduleOneDayInNum": delayed.last_day,
        },
    }


async def _clients(call: Call, groups: list[str]) -> list[str]:
    found: set[str] = set()
    for name in groups:
        with passing_over(*NOBODY):
            told = await call.admin.groups.connections(name)
            found |= {f"{one.language}%{version_name(one.version)}" for one in told.connectionSet}
    return sorted(found)
