"""The worst input that a broker and a NameServer accept, for each request code.

The test that counts steps (test_turn_cost.py) and the program that measures time (measure_turns.py) share it.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from dledger.broker.admin.refusals import REFUSED
from dledger.broker.auth.auth_processor import MAX_ACL_BODY, MAX_ENTRIES, MAX_NETWORKS
from dledger.broker.clients.client_processor import MAX_GROUPS, MAX_HEARTBEAT
from dledger.broker.clients.membership_relay import MAX_TELL
from dledger.broker.filter.message_filter import MAX_EXPRESSION
from dledger.broker.filter.sql_grammar import MAX_TOKENS
from dledger.broker.filter.sql_nodes import MAX_SCANS
from dledger.broker.intake.send_processor import MAX_BATCH_MESSAGES
from dledger.broker.longpolling import stranded_pulls
from dledger.broker.pop.ack_processor import MAX_BATCH_ACK_BODY, MAX_BATCH_ACKS
from dledger.broker.topic.topic_processor import MAX_LIST
from dledger.formats.message_ids import decode_message_id
from dledger.formats.state import MAX_LOCK_BATCH, MAX_SOURCES, AclEntry, User, pack_op
from dledger.formats.timers import RecallHandle
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import CONTROLLER_REQUESTS, NameServer
from dledger.remoting.bodies import MAX_BARE_TAGS, PullsHeld, WaitingPull
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request, SerializeType
from dledger.remoting.fastjson import MAX_ODD, MAX_UNQUOTED
from dledger.remoting.frames import encode_request
from dledger.remoting.limits import MAX_BODY, MAX_REQUEST_HEADER
from dledger.remoting.registration import DataVersion, Registration, TopicConfig, encode_registration
from dledger.remoting.server import Connection, RemotingServer
from tests.broker.harness import FakeConnection, World, decode, make_env, pull_header, send_header

SETTLE_TURNS = 50
"""Turns of a millisecond or more in which a request may still start something."""
MAX_TURNS = 20_000
"""Turns of the loop in which a request that is handled in many pieces may still start something."""
IN_PIECES = (RequestCode.REGISTER_BROKER,)

Asked = tuple[Mapping[str, Any] | Any, bytes]
"""Header and body."""


def message(properties: bytes) -> bytes:
    """The smallest of a batch."""
    return (
        struct.pack(">iiiii", 22 + len(properties), 0, 0, 0, 0)
        + struct.pack(">h", len(properties))
        + properties
    )


def batch(properties: bytes = b"") -> Asked:
    return send_header("T", 0, "", batch=True), message(properties) * MAX_BATCH_MESSAGES


def queue(**more: object) -> Asked:
    """A header as large as one may be, of fields that nobody knows."""
    fields = {"topic": "T", "queueId": "0", "consumerGroup": "CG", "group": "CG", "clientID": "c", **more}
    filling = {f"f{number}": "v" for number in range((MAX_REQUEST_HEADER - 2000) // 14)}
    return {name: str(value) for name, value in fields.items()} | filling, b""


def heartbeat(**sets: object) -> Asked:
    body = json.dumps({"clientID": "c", **sets}, separators=(",", ":")).encode()
    assert len(body) <= MAX_HEARTBEAT
    return None, body


def consumer(subscriptions: list[dict[str, str]], name: str = "CG") -> dict[str, object]:
    return {"groupName": name, "subscriptionDataSet": subscriptions}


def heartbeats() -> list[Asked]:
    many = [{"topic": f"{number}"} for number in range(MAX_HEARTBEAT // 19)]
    tags = "||".join(map(str, range(MAX_BARE_TAGS // 6)))
    groups = [{"groupName": f"{number}"} for number in range(MAX_GROUPS)]
    unquoted = b'{"clientID":"c",a:[' + b"{1:2}," * ((MAX_UNQUOTED - 40) // 6) + b"1]}"
    odd = b'{"clientID":"c","a":[' + b"{{0:1}:2}," * ((MAX_ODD - 40) // 10) + b"1]}"
    return [
        heartbeat(consumerDataSet=[consumer(many)]),
        heartbeat(consumerDataSet=[consumer([{"topic": "T", "subString": tags}])]),
        heartbeat(producerDataSet=groups),
        heartbeat(consumerDataSet=groups),
        (None, unquoted),
        (None, odd),
    ]


def sends() -> list[Asked]:
    properties = "".join(f"k{number}\x01v\x02" for number in range(3500))
    return [
        (send_header("T", 0, ""), b"x" * (4 << 20)),
        (send_header("T", 0, properties), b"x"),
        (send_header("T", 0, "CLUSTER\x01x\x02" + properties), b"x"),
        batch(),
        batch(b"A\x01b\x02" * 4),
    ]


def replies() -> list[Asked]:
    properties = "REPLY_TO_CLIENT\x01c\x02" + "".join(f"k{number}\x01v\x02" for number in range(3500))
    return [(send_header("T", 0, properties), b"x" * (4 << 20)), (send_header("T", 0, ""), b"x")]


def listed(body: Mapping[str, object]) -> bytes:
    return json.dumps(body).encode()


def topic(**more: object) -> Asked:
    fields = {
        "topic": "Z",
        "defaultTopic": "TBW102",
        "readQueueNums": 1024,
        "writeQueueNums": 1024,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return {name: str(value) for name, value in (fields | more).items()}, b""


def pulls() -> list[Asked]:
    tags = "||".join(map(str, range(MAX_EXPRESSION // 6)))
    return [
        (pull_header("T", 0, 0, subscription=tags), b""),
        (pull_header("T", 0, 0, maxMsgNums=10_000), b""),
        *(
            (pull_header(topic, 0, 0, subscription=text, expressionType="SQL92"), b"")
            for topic in ("T", "Wide")
            for text in SQL
        ),
    ]


def ends() -> list[Asked]:
    """Ends of three transactions: with the largest message, with the most properties, and with no message."""
    ended = {"commitOrRollback": 8, "msgId": "m", "producerGroup": "PG"}
    return [queue(**ended, tranStateTableOffset=place, commitLogOffset=at) for place, at in ENDED.items()]


HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
ENDED: dict[int, int] = {0: 0, 1: 0, 1 << 40: 0}
"""Half messages, and where they are."""


async def begin_transactions(world: World) -> None:
    properties = HALF + "".join(f"k{number}\x01v\x02" for number in range(3400))
    for place, (text, body) in enumerate([(HALF, b"x" * ((4 << 20) - 1024)), (properties, b"x")]):
        sent = await world.send("T", body, properties=text, sysFlag=4)
        assert sent.ext["queueOffset"] == str(place)
        ENDED[place] = decode_message_id(sent.ext["msgId"]).physical_offset


def locks() -> Asked:
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in range(MAX_LOCK_BATCH)]
    return None, json.dumps({"consumerGroup": "CG", "clientId": "c", "mqSet": queues}).encode()


def pops() -> list[Asked]:
    tags = "||".join(map(str, range(MAX_EXPRESSION // 6)))
    fields = {"queueId": -1, "maxMsgNums": 32, "invisibleTime": 1000, "pollTime": 0, "initMode": 0}
    return [queue(**fields), queue(**fields, exp=tags), queue(**fields, order="true")]


def acks() -> Asked:
    one = {"c": "CG", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
    bits = "/" * ((MAX_BATCH_ACK_BODY // MAX_BATCH_ACKS - 90) // 4 * 4)
    body = json.dumps({"acks": [one | {"b": bits}] * MAX_BATCH_ACKS}, separators=(",", ":")).encode()
    assert len(body) <= MAX_BATCH_ACK_BODY
    return None, body


def assignment() -> Asked:
    asked = {"topic": "T", "consumerGroup": "CG", "clientId": "c" * 3000, "messageModel": "BROADCASTING"}
    return None, json.dumps(asked).encode()


SQL = [
    "a > 5",
    " or ".join(["a > 1.5"] * (MAX_TOKENS // 4)),
    " and ".join(["k1 = 'w' or k2 <> 'v'"] * (MAX_TOKENS // 8)),
    " or ".join(["k1 contains 'xy'"] * MAX_SCANS),
]


def subscription_checks() -> list[Asked]:
    tags = {"topic": "T", "subString": "||".join(map(str, range(MAX_EXPRESSION // 6)))}
    wanted = [tags, *({"topic": "T", "subString": text, "expressionType": "SQL92"} for text in SQL)]
    bodies = ({"clientId": "c", "group": "CG", "subscriptionData": one} for one in wanted)
    return [(None, json.dumps(body).encode()) for body in bodies]


def group_settings() -> Asked:
    attributes = {f"{number}": "" for number in range(MAX_BODY // 10)}
    return None, json.dumps({"groupName": "x", "attributes": attributes}, separators=(",", ":")).encode()


USERS_THERE, ENTRIES_THERE = 1500, MAX_ENTRIES - 150


def apply_users(world: World) -> None:
    """Many users, some of them with policies."""
    for number in range(USERS_THERE):
        world.broker.store.state.apply(pack_op(User(f"u{number}", "x").op()))
    for number in range(ENTRIES_THERE):
        for user in ("u0", "u1", "u2"):
            entry = AclEntry(user, "Custom", f"Topic:{number}", ("Pub",), True, ("10.0.0.0/8",))
            world.broker.store.state.apply(pack_op(entry.op()))


def consumers_told() -> list[Asked]:
    """Two reports of consumers: as many clients of one group as there is room for, and as many groups."""
    here = {"consumeType": "", "messageModel": "", "consumeFromWhere": ""}
    client = {"clientAddr": "", "language": "", "version": 0}
    most = MAX_TELL // 63
    one = [{"groupName": "CG", "clients": [{"clientId": str(at), **client} for at in range(most)], **here}]
    many = [
        {"groupName": f"G{at}", "clients": [{"clientId": "c", **client}], **here}
        for at in range(MAX_TELL // 154)
    ]
    bodies = [json.dumps({"groups": groups}, separators=(",", ":")).encode() for groups in (one, many)]
    assert all(MAX_TELL * 0.8 < len(body) <= MAX_TELL for body in bodies), [len(body) for body in bodies]
    return [({}, body) for body in bodies]


def pulls_told() -> list[Asked]:
    """As many as one request takes, with the longest names."""
    name = "n" * 255
    pulls = [
        WaitingPull(f"{at}{name}", name, name, at, 1 << 40, at, SerializeType.JSON, "10.0.0.9")
        for at in range(stranded_pulls.SLICE)
    ]
    body = PullsHeld(1, pulls).encode()
    assert len(body) <= stranded_pulls.MAX_TELL
    return [({}, body)]


def acls() -> list[Asked]:
    """As many entries as one request takes, or as many addresses."""
    entry = {"actions": ["Pub"], "decision": "Allow"}
    many = [{"resource": f"Group:{number}", **entry} for number in range(150)]
    addresses = [f"10.{number // 99}.{number % 99}.0/24" for number in range(MAX_NETWORKS)]
    long = [
        {"resource": f"Group:{at}", "sourceIps": addresses[at : at + MAX_SOURCES], **entry}
        for at in range(0, MAX_NETWORKS, MAX_SOURCES)
    ]
    bodies = [json.dumps({"policies": [{"entries": one}]}, separators=(",", ":")) for one in (many, long)]
    assert max(map(len, bodies)) <= MAX_ACL_BODY
    return [({"subject": "User:u0"}, body.encode()) for body in bodies]


def ranges() -> Asked:
    body = ",".join(f"[{number},{number}]" for number in range(1, 16_000))
    return {"description": "none", "start": "0"}, f"[{body}]".encode()


def of_v1(asked: Asked) -> Asked:
    header, body = asked
    names = header.__struct_fields__
    fields = {name: getattr(header, name) for name in names}
    return {name: _text(value) for name, value in fields.items() if value is not None}, body


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


BACKGROUND: list[asyncio.Task[None]] = []
"""That it is not collected."""
BROKER: dict[int, Callable[[], list[Asked]]] = {
    RequestCode.SEND_MESSAGE: lambda: [of_v1(asked) for asked in sends()],
    RequestCode.SEND_MESSAGE_V2: sends,
    RequestCode.SEND_BATCH_MESSAGE: lambda: [batch(), batch(b"A\x01b\x02" * 4)],
    RequestCode.SEND_REPLY_MESSAGE: lambda: [of_v1(asked) for asked in replies()],
    RequestCode.SEND_REPLY_MESSAGE_V2: replies,
    RequestCode.PULL_MESSAGE: pulls,
    RequestCode.LITE_PULL_MESSAGE: pulls,
    RequestCode.QUERY_MESSAGE: lambda: [queue(key="k", maxNum=64, beginTimestamp=0, endTimestamp=1 << 60)],
    RequestCode.QUERY_CONSUME_QUEUE: lambda: [queue(index=0, count=1 << 20)],
    RequestCode.VIEW_MESSAGE_BY_ID: lambda: [queue(offset=0)],
    RequestCode.RECALL_MESSAGE: lambda: [
        queue(recallHandle=RecallHandle("T", "broker-a", 1_700_000_100_000, "K" * 1000).encode())
    ],
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda: [queue(offset=0, group="g", delayLevel=0)],
    RequestCode.END_TRANSACTION: ends,
    RequestCode.CHECK_TRANSACTION_STATE: lambda: [
        queue(producerGroup="p", tranStateTableOffset=0, commitLogOffset=0)
    ],
    RequestCode.QUERY_CONSUMER_OFFSET: lambda: [queue()],
    RequestCode.UPDATE_CONSUMER_OFFSET: lambda: [queue(commitOffset=0)],
    RequestCode.UPDATE_AND_CREATE_TOPIC: lambda: [
        topic(),
        topic(attributes=",".join(f"+{number}=" for number in range(4000))),
    ],
    RequestCode.GET_ALL_TOPIC_CONFIG: lambda: [(None, b"")],
    RequestCode.UPDATE_BROKER_CONFIG: lambda: [(None, b"regionId=x\n" * 700)],
    RequestCode.GET_BROKER_CONFIG: lambda: [(None, b"")],
    RequestCode.GET_BROKER_RUNTIME_INFO: lambda: [(None, b"")],
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda: [queue(timestamp=0)],
    RequestCode.GET_MAX_OFFSET: lambda: [queue(), queue(queueId="")],
    RequestCode.GET_MIN_OFFSET: lambda: [queue()],
    RequestCode.GET_EARLIEST_MSG_STORETIME: lambda: [queue()],
    RequestCode.HEART_BEAT: heartbeats,
    RequestCode.UNREGISTER_CLIENT: lambda: [queue()],
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda: [queue()],
    RequestCode.LOCK_BATCH_MQ: lambda: [locks()],
    RequestCode.UNLOCK_BATCH_MQ: lambda: [locks()],
    RequestCode.CHECK_CLIENT_CONFIG: subscription_checks,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda: [group_settings()],
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: [(None, b"")],
    RequestCode.GET_ALL_CONSUMER_OFFSET: lambda: [(None, b"")],
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda: [
        (None, listed({"topicConfigList": [{"topicName": f"List{number}"} for number in range(MAX_LIST)]}))
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda: [
        (None, listed({"groupConfigList": [{"groupName": f"List{number}"} for number in range(MAX_LIST)]}))
    ],
    RequestCode.GET_ALL_DELAY_OFFSET: lambda: [(None, b"")],
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: lambda: [(None, b"")],
    RequestCode.GET_ALL_PRODUCER_INFO: lambda: [(None, b"")],
    RequestCode.QUERY_CORRECTION_OFFSET: lambda: [
        queue(compareGroup="CG", filterGroups=",".join(map(str, range(5000))))
    ],
    RequestCode.GET_BROKER_HA_STATUS: lambda: [(None, b"")],
    RequestCode.GET_BROKER_EPOCH_CACHE: lambda: [(None, b"")],
    RequestCode.SHOW_NODE: lambda: [(None, b"")],
    RequestCode.DELETE_EXPIRED_COMMITLOG: lambda: [(None, b"")],
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: lambda: [(None, b"")],
    RequestCode.CLEAN_UNUSED_TOPIC: lambda: [(None, b"")],
    **{code: lambda: [(None, b"")] for code in REFUSED},
    RequestCode.DELETE_TOPIC_IN_BROKER: lambda: [queue()],
    RequestCode.DELETE_SUBSCRIPTIONGROUP: lambda: [queue(groupName="CG", cleanOffset="true")],
    RequestCode.GET_TOPIC_STATS_INFO: lambda: [queue()],
    RequestCode.GET_CONSUME_STATS: lambda: [queue(), queue(topicList=";".join(["T"] * 1000))],
    RequestCode.GET_BROKER_CONSUME_STATS: lambda: [queue(isOrder="false")],
    RequestCode.QUERY_CONSUME_TIME_SPAN: lambda: [queue()],
    RequestCode.VIEW_BROKER_STATS_DATA: lambda: [queue(statsName="TOPIC_PUT_NUMS", statsKey="T")],
    RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda: [queue()],
    RequestCode.GET_PRODUCER_CONNECTION_LIST: lambda: [queue(producerGroup="PG")],
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda: [queue()],
    RequestCode.QUERY_TOPICS_BY_CONSUMER: lambda: [queue()],
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: lambda: [queue()],
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: lambda: [(None, b"")],
    RequestCode.GET_TOPIC_CONFIG: lambda: [queue()],
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: lambda: [queue()],
    RequestCode.QUERY_ASSIGNMENT: lambda: [assignment()],
    RequestCode.SET_MESSAGE_REQUEST_MODE: lambda: [(None, b'{"topic":"T","consumerGroup":"CG"}')],
    RequestCode.POP_MESSAGE: pops,
    RequestCode.ACK_MESSAGE: lambda: [queue(offset=0, extraInfo="0 1 1 0 0 b 0 0")],
    RequestCode.BATCH_ACK_MESSAGE: lambda: [acks()],
    RequestCode.PEEK_MESSAGE: lambda: [queue(queueId=-1, maxMsgNums=32)],
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: lambda: [
        queue(offset=0, invisibleTime=1, extraInfo="0 1 1 0 0 b 0 0")
    ],
    RequestCode.NOTIFICATION: lambda: [queue(queueId=-1, pollTime=0)],
    RequestCode.POLLING_INFO: lambda: [queue(queueId=-1)],
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda: [
        queue(timestamp=0, isForce="true", queueId=-1, topic="wide")
    ],
    RequestCode.CLONE_GROUP_OFFSET: lambda: [queue(srcGroup="CG", destGroup="other")],
    RequestCode.GET_CONSUMER_RUNNING_INFO: lambda: [queue(clientId="c")],
    RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda: [queue(clientId="c", msgId="0" * 32)],
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: lambda: [queue()],
    RequestCode.AUTH_CREATE_USER: lambda: [({"username": "x"}, b'{"password":"x"}')],
    RequestCode.AUTH_UPDATE_USER: lambda: [({"username": "u0"}, b'{"password":"y"}')],
    RequestCode.AUTH_DELETE_USER: lambda: [queue(username="u0")],
    RequestCode.AUTH_GET_USER: lambda: [queue(username="u0")],
    RequestCode.AUTH_LIST_USER: lambda: [queue(), queue(filter="u")],
    RequestCode.AUTH_CREATE_ACL: acls,
    RequestCode.AUTH_UPDATE_ACL: lambda: acls()[:1],
    RequestCode.AUTH_DELETE_ACL: lambda: [queue(subject="User:u0")],
    RequestCode.AUTH_GET_ACL: lambda: [queue(subject="User:u0")],
    RequestCode.AUTH_LIST_ACL: lambda: [queue(), queue(resourceFilter="5")],
    RequestCode.TELL_CONSUMERS: consumers_told,
    RequestCode.TELL_PULLS: pulls_told,
    RequestCode.AUDIT_DESCRIBE: lambda: [queue(version=1)],
    RequestCode.AUDIT_SEGMENT: lambda: [queue(description="none", start=0, blockEntries=1)],
    RequestCode.AUDIT_SIDE: lambda: [queue(description="none")],
    RequestCode.AUDIT_DRILL: lambda: [ranges()],
    RequestCode.AUDIT_ENTRIES: lambda: [ranges()],
    RequestCode.AUDIT_PAGE: lambda: [queue(job="none", page=0)],
    RequestCode.AUDIT_STAMP: lambda: [queue(description="none", start=0)],
    RequestCode.AUDIT_UNITS: lambda: [queue(description="none", first=0, count=1 << 18)],
    RequestCode.AUDIT_LOG: lambda: [queue(first=0, maxBytes=1 << 30)],
}
"""What is read on the loop of each code; an audit's own work is done by threads (`AuditJobs`)."""


def registration() -> Asked:
    """A registration of topics that are all unknown."""
    topics = {f"topic-{number:05d}": TopicConfig("", 4, 4, 6) for number in range(20_000)}
    body = encode_registration(Registration(topics, DataVersion(1, 1, 1)))
    fields = {
        "brokerName": "b",
        "brokerAddr": "10.0.0.1:1",
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": "0",
    }
    return fields, body


def route_of_topic() -> Asked:
    rows = ",".join('{"brokerName":"","readQueueNums":1,"writeQueueNums":1,"perm":6}' for _ in range(900))
    return {"topic": "T"}, b'{"queueDatas":[%b],"brokerDatas":[]}' % rows.encode()


def identity() -> Asked:
    return queue(
        brokerName="b",
        brokerAddr="10.0.0.1:1",
        clusterName="c",
        brokerId=0,
        cluster="c",
        namespace="n",
        key="k",
    )


def version() -> Asked:
    header, _ = identity()
    return header, b'{"a":[' + b"{1:2}," * ((MAX_UNQUOTED - 40) // 6) + b"1]}"


NAMESERVER: dict[int, Callable[[], list[Asked]]] = {
    RequestCode.REGISTER_BROKER: lambda: [registration()],
    RequestCode.UNREGISTER_BROKER: lambda: [identity()],
    RequestCode.BROKER_HEARTBEAT: lambda: [identity()],
    RequestCode.QUERY_DATA_VERSION: lambda: [version()],
    RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda: [queue()],
    RequestCode.GET_BROKER_CLUSTER_INFO: lambda: [(None, b"")],
    RequestCode.GET_BROKER_MEMBER_GROUP: lambda: [identity()],
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda: [(None, b"")],
    RequestCode.GET_TOPICS_BY_CLUSTER: lambda: [identity()],
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda: [(None, b"")],
    RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda: [queue()],
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: lambda: [route_of_topic()],
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: lambda: [identity()],
    RequestCode.ADD_WRITE_PERM_OF_BROKER: lambda: [identity()],
    RequestCode.PUT_KV_CONFIG: lambda: [({"namespace": "n", "key": "k", "value": "v" * 60_000}, b"")],
    RequestCode.GET_KV_CONFIG: lambda: [identity()],
    RequestCode.DELETE_KV_CONFIG: lambda: [identity()],
    RequestCode.GET_KVLIST_BY_NAMESPACE: lambda: [identity()],
    RequestCode.UPDATE_NAMESRV_CONFIG: lambda: [(None, b"orderMessageEnable=true\n" * 300)],
    RequestCode.GET_NAMESRV_CONFIG: lambda: [(None, b"")],
    **{code: lambda: [(None, b"")] for code in CONTROLLER_REQUESTS},
}


WIDE = "".join(f"k{number}\x01v\x02" for number in range(3500))
"""Properties of a message that has as many as it may."""


async def make_broker(code: int, directory: Path) -> RemotingServer:
    """A broker with what the worst input of this code works on."""
    world = await World(str(directory)).open()
    for _ in range(100):
        await world.send("T")
    for _ in range(8):
        await world.send("Wide", properties=WIDE)
    world.node.meta["n1"] = {"store_ip": FakeConnection.peer.partition(":")[0]}  # the caller is a member
    world.node.peers_without_proofs = ["n1"]  # which needs no proof
    if code == RequestCode.END_TRANSACTION:
        await begin_transactions(world)
    if RequestCode(code).name.startswith("AUTH_"):
        apply_users(world)
        BACKGROUND.append(asyncio.create_task(world.broker.core.background.run()))
        await asyncio.sleep(0)
    return world.broker.server


async def make_nameserver() -> RemotingServer:
    """A NameServer that knows no broker."""
    nameserver = NameServer(make_env(), NamesrvConfig())
    nameserver.server.loop = asyncio.get_running_loop()
    return nameserver.server


async def end_background() -> None:
    """End what brokers of this loop do in the background."""
    for task in BACKGROUND:
        task.cancel()
    await asyncio.gather(*BACKGROUND, return_exceptions=True)
    BACKGROUND.clear()


async def ask(server: RemotingServer, code: int, asked: Asked) -> FakeConnection:
    """Give a server the bytes of a request in a turn of their own, and wait for the answer.

    Some requests are answered later than a test would wait; what their turns cost is known by then.
    """
    header, body = asked

    def dispatch(connection: FakeConnection, request: Request) -> None:
        server.dispatch(cast(Connection, connection), request)

    connection = FakeConnection(dispatch=dispatch)
    frame = encode_request(code, 1, header, len(body)) + body
    arrived = asyncio.Event()

    def receive() -> None:
        for request in decode(frame):
            dispatch(connection, request)
        arrived.set()

    asyncio.get_running_loop().call_soon(receive)
    await arrived.wait()
    for _ in range(MAX_TURNS if code in IN_PIECES else SETTLE_TURNS):
        if connection.replies:
            break
        await asyncio.sleep(0.001)
    for reply in connection.replies.values():
        # A refusal for its size would prove nothing.
        remark = reply.remark or ""
        assert "at most" not in remark and "the limit is" not in remark, remark
    return connection
