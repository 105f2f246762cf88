"""Users and policies in the log (ACL 2.0), on a broker: who may ask for what, and who may change it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.auth import user_access
from dledger.broker.auth.auth_processor import MAX_ENTRIES
from dledger.broker.requests import declarations
from dledger.formats.state import (
    ACLS,
    USERS,
    AclEntry,
    ReplicatedState,
    User,
    pack_op,
    pack_parts,
    unpack_parts,
)
from dledger.remoting.auth_bodies import UserInfo
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED
from dledger.remoting.frames import fields_of
from dledger.remoting.operator_headers import DeleteAclHeader, SubjectHeader, UserHeader
from dledger.remoting.signing import SIGNATURE, Credentials
from tests.broker.harness import FakeConnection, Member, Reply, World, processor_kinds, pull_header, run
from tests.broker.test_access_control import ACK, COMMIT, SEND, decide, pull_from, send_to
from tests.broker.test_clients import heartbeat

PULL = RequestCode.PULL_MESSAGE
ROOT = User("root", "root-secret", superuser=True)
ON: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True, "init_user": ROOT}
TASKS: set[asyncio.Task[None]] = set()
"""That they are not collected."""
POLICIES: dict[str, list[tuple[str, str, str]]] = {
    "producer": [
        ("Topic:orders", "Pub", "Allow"),
        ("Topic:log*", "Pub", "Allow"),
        ("Topic:logs", "All", "Deny"),
    ],
    "consumer": [("Topic:orders", "Sub", "Allow"), ("Group:readers", "Sub", "Allow")],
    "operator": [("Cluster:*", "All", "Allow"), ("Topic:*", "Create,Delete,Get", "Allow")],
    "nobody": [],
}


def acl(user: str, entries: list[tuple[str, str, str]], **more: Any) -> bytes:
    """As mqadmin sends it."""
    rows = [
        {"resource": resource, "actions": actions.split(","), "sourceIps": None, "decision": decision, **more}
        for resource, actions, decision in entries
    ]
    return json.dumps({"subject": f"User:{user}", "policies": [{"entries": rows}]}).encode()


async def opened(tmp_path: Path, **changes: Any) -> World:
    """A broker with these users; each has a password of its name."""
    world = await World(str(tmp_path / "store"), **(ON | changes)).open()
    TASKS.update(
        map(asyncio.create_task, (world.broker.leadership.services.run(), world.broker.core.background.run()))
    )
    await asyncio.sleep(0)
    for name, entries in POLICIES.items():
        await create(world, name)
        if entries:
            assert (
                await ask(world, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl(name, entries))
            ).code == 0
    return world


async def create(world: World, name: str, **more: str) -> Reply:
    body = json.dumps({"username": name, "password": f"{name}-secret", **more}).encode()
    return await ask(world, RequestCode.AUTH_CREATE_USER, {"username": name}, body)


async def ask(
    world: World, code: int, header: Mapping[str, str], body: bytes = b"", who: str = "root"
) -> Reply:
    """Let in, and answered."""
    return await world.call(code, Credentials(who, f"{who}-secret").sign(header, body), body)


def refusal(world: World, who: Any, code: int, header: Any, body: bytes = b"", **how: Any) -> str:
    """The text; empty where the request may be made."""
    access = world.features.auth.access
    assert access is not None
    return decide(access, who, code, header, body, prefix="", **how)


def no(what: str, who: str, why: str = "no matched policies.") -> str:
    return f"User:{who} has no permission to access {what} from 10.0.0.9, {why}"


DECISIONS: list[tuple[str | None, int, Any, bytes, str]] = [
    (None, SEND, send_to("orders"), b"x", "username cannot be null."),
    ("stranger", SEND, send_to("orders"), b"x", "User:stranger is not found."),
    ("root", SEND, send_to("anything"), b"x", ""),
    ("root", RequestCode.AUDIT_ENTRIES, None, b"", ""),
    ("producer", SEND, send_to("orders"), b"x", ""),
    ("producer", SEND, send_to("log-1"), b"x", ""),
    ("producer", SEND, send_to("logs"), b"x", no("Topic:logs", "producer", "the decision is deny.")),
    ("producer", SEND, send_to("other"), b"x", no("Topic:other", "producer")),
    ("producer", RequestCode.SEND_MESSAGE, {"topic": "other"}, b"x", no("Topic:other", "producer")),
    ("producer", SEND, send_to("%RETRY%readers"), b"x", no("Group:readers", "producer")),
    ("producer", RequestCode.END_TRANSACTION, {"topic": "orders"}, b"", ""),
    ("producer", RequestCode.END_TRANSACTION, {"topic": "other"}, b"", no("Topic:other", "producer")),
    ("producer", RequestCode.SEND_REPLY_MESSAGE_V2, {}, b"", ""),
    ("producer", PULL, pull_from("orders", "readers"), b"", no("Group:readers", "producer")),
    ("producer", RequestCode.GET_MAX_OFFSET, {"topic": "orders"}, b"", no("Topic:orders", "producer")),
    ("consumer", PULL, pull_from("orders", "readers"), b"", ""),
    ("consumer", PULL, pull_from("other", "readers"), b"", no("Topic:other", "consumer")),
    ("consumer", PULL, pull_from("%RETRY%readers", "readers"), b"", ""),
    ("consumer", SEND, send_to("%RETRY%readers"), b"x", ""),
    ("consumer", ACK, {"topic": "%RETRY%readers_orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", COMMIT, {"topic": "orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", COMMIT, {"topic": "orders", "consumerGroup": "x"}, b"", no("Group:x", "consumer")),
    ("consumer", RequestCode.GET_MAX_OFFSET, {"topic": "orders"}, b"", ""),
    ("consumer", RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "k"}, b"", ""),
    ("consumer", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0", "topic": "orders"}, b"",
     no("Topic:* (the place of a message does not tell its topic)", "consumer")),
    ("consumer", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "orders", "group": "readers"}, b"",
     no("Group:readers", "consumer")),
    ("consumer", RequestCode.LOCK_BATCH_MQ, None,
     b'{"consumerGroup":"readers","clientId":"c","mqSet":[{"topic":"x","brokerName":"b","queueId":0}]}',
     no("Topic:x", "consumer")),
    ("consumer", RequestCode.HEART_BEAT, None, heartbeat("c@1", "x"), no("Group:x", "consumer")),
    ("consumer", RequestCode.UPDATE_BROKER_CONFIG, None, b"a=b", no("Cluster:DefaultCluster", "consumer")),
    ("consumer", RequestCode.GET_BROKER_CONFIG, None, b"", no("Cluster:DefaultCluster", "consumer")),
    ("consumer", RequestCode.AUTH_GET_USER, {"username": "root"}, b"",
     no("Cluster:DefaultCluster", "consumer")),
    ("consumer", RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, b"", ""),
    ("operator", RequestCode.UPDATE_BROKER_CONFIG, None, b"a=b", ""),
    ("operator", RequestCode.AUTH_CREATE_USER, {"username": "x"}, b"", ""),
    ("operator", RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, b"", ""),
    ("operator", RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None,
     b'{"topicConfigList":[{"topicName":"a"},{"topicName":"%RETRY%g"}]}', no("Group:g", "operator")),
    ("operator", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"g"}',
     no("Group:g", "operator")),
    ("operator", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}, b"", ""),
    ("operator", RequestCode.AUDIT_ENTRIES, None, b"",
     "User:operator is not a super user, which request code 28007 requires."),
    ("nobody", SEND, send_to("orders"), b"x", no("Topic:orders", "nobody")),
]  # fmt: skip


def test_decisions(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        for who, code, header, body, expected in DECISIONS:
            for _ in range(2):  # the second time from what was decided
                assert refusal(world, who, code, header, body) == expected, (who, code, header)

    run(test)


def test_a_signature_is_checked_and_a_user_may_be_disabled(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        header = send_to("orders")
        wrong = "check signature failed."
        assert refusal(world, Credentials("producer", "wrong"), SEND, header, b"x") == wrong
        assert refusal(world, "producer", SEND, header, b"x", added={"more": "x"}) == wrong
        assert refusal(world, "producer", SEND, header, b"x", added={SIGNATURE: ""}) == wrong
        assert (
            refusal(
                world,
                "producer",
                SEND,
                header,
                b"x",
                flag=FLAG_FORWARDED,
                added={"forwardedFor": "9.9.9.9:1"},
            )
            == ""
        )
        update = RequestCode.AUTH_UPDATE_USER
        assert (await ask(world, update, {"username": "producer"}, b'{"userStatus":"disable"}')).code == 0
        assert refusal(world, "producer", SEND, header, b"x") == "User:producer is disabled."
        body = b'{"userStatus":"ENABLE","password":"another"}'
        assert (await ask(world, update, {"username": "producer"}, body)).code == 0
        assert refusal(world, "producer", SEND, header, b"x") == wrong
        assert refusal(world, Credentials("producer", "another"), SEND, header, b"x") == ""

    run(test)


def test_what_was_decided_is_forgotten_when_users_or_policies_change(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        header, beat = pull_from("orders", "readers"), FakeConnection()
        body = heartbeat("c@1", "readers", topic="orders")
        subject = {"subject": "User:consumer"}

        def both(expected: bool) -> None:
            assert (refusal(world, "consumer", PULL, header) == "") is expected
            assert (
                refusal(world, "consumer", RequestCode.HEART_BEAT, None, body, connection=beat) == ""
            ) is expected

        both(True)
        deny = acl("consumer", [("Topic:orders", "All", "Deny")])
        assert (await ask(world, RequestCode.AUTH_UPDATE_ACL, subject, deny)).code == 0
        both(False)
        drop = subject | {"resource": "Topic:orders"}
        assert (await ask(world, RequestCode.AUTH_DELETE_ACL, drop)).code == 0
        both(False)
        allow = acl("consumer", [("Topic:*", "Sub", "Allow")])
        assert (await ask(world, RequestCode.AUTH_CREATE_ACL, subject, allow)).code == 0
        both(True)
        assert (await ask(world, RequestCode.AUTH_DELETE_ACL, subject)).code == 0
        both(False)
        assert world.broker.store.state[ACLS].keys_of("user", "consumer") == []
        world.broker.store.state = unpack_parts(pack_parts(ReplicatedState()))  # a snapshot without users
        assert refusal(world, "consumer", PULL, header) == "User:consumer is not found."

    run(test)


def test_a_user_that_goes_takes_its_policies_along(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        gone = {"username": "producer"}
        first = world.ask(RequestCode.AUTH_DELETE_USER, Credentials("root", "root-secret").sign(gone, b""))
        body = b'{"password":"producer-secret"}'  # created again before the deletion is applied
        second = world.ask(
            RequestCode.AUTH_CREATE_USER, Credentials("root", "root-secret").sign(gone, body), body
        )
        assert ((await first).code, (await second).code) == (0, 0)
        assert refusal(world, "producer", SEND, send_to("orders"), b"x") == no("Topic:orders", "producer")
        assert (await ask(world, RequestCode.AUTH_DELETE_USER, {"username": "stranger"})).code == 0

    run(test)


def test_only_super_users_touch_super_users_or_see_passwords(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        for code, name, body in (
            (RequestCode.AUTH_CREATE_USER, "new", b'{"password":"x","userType":"Super"}'),
            (RequestCode.AUTH_UPDATE_USER, "nobody", b'{"userType":"super"}'),
            (RequestCode.AUTH_UPDATE_USER, "root2", b'{"password":"mine"}'),
            (RequestCode.AUTH_DELETE_USER, "root2", b""),
        ):
            await create(world, "root2", userType="Super")
            reply = await ask(world, code, {"username": name}, body, "operator")
            assert reply.code != 0 and "super user" in (reply.remark or "")
            assert (await ask(world, code, {"username": name}, body, "root")).code == 0
        seen = {"userStatus": "enable", "userType": "Normal", "username": "producer"}
        for who, shown in (("operator", seen), ("root", {**seen, "password": "producer-secret"})):
            reply = await ask(world, RequestCode.AUTH_GET_USER, {"username": "producer"}, who=who)
            assert json.loads(reply.body) == shown
            listed = json.loads(
                (await ask(world, RequestCode.AUTH_LIST_USER, {"filter": "producer"}, who=who)).body
            )
            assert listed == [shown]

    run(test)


def test_lists_and_what_is_not_there(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        assert (await ask(world, RequestCode.AUTH_GET_USER, {"username": "x"})).body == b""
        names = [
            one["username"] for one in json.loads((await ask(world, RequestCode.AUTH_LIST_USER, {})).body)
        ]
        assert names == sorted([*POLICIES, "root"])
        assert (await ask(world, RequestCode.AUTH_LIST_USER, {"filter": "zz"})).body == b""
        found = json.loads((await ask(world, RequestCode.AUTH_GET_ACL, {"subject": "User:consumer"})).body)
        assert found == {
            "subject": "User:consumer",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {"resource": "Group:readers", "actions": ["Sub"], "decision": "Allow"},
                        {"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"},
                    ],
                }
            ],
        }
        assert (await ask(world, RequestCode.AUTH_GET_ACL, {"subject": "User:nobody"})).body == b""
        assert (
            await ask(world, RequestCode.AUTH_GET_ACL, {"subject": "User:x"})
        ).remark == "The subject is not exist."
        everything = json.loads((await ask(world, RequestCode.AUTH_LIST_ACL, {})).body)
        assert [one["subject"] for one in everything] == ["User:consumer", "User:operator", "User:producer"]
        some = json.loads((await ask(world, RequestCode.AUTH_LIST_ACL, {"resourceFilter": "log"})).body)
        [policy] = some[0]["policies"]
        assert [one["resource"] for one in policy["entries"]] == ["Topic:log*", "Topic:logs"]
        filters = {"subjectFilter": "cons", "resourceFilter": "log"}
        assert (await ask(world, RequestCode.AUTH_LIST_ACL, filters)).body == b""

    run(test)


WRONG: list[tuple[int, dict[str, str], bytes, str]] = [
    (3001, {"username": ""}, b'{"password":"x"}', "The username is blank"),
    (3001, {"username": " x"}, b'{"password":"x"}', "no blanks at its ends"),
    (3001, {"username": "x" * 256}, b'{"password":"x"}', "at most 255"),
    (3001, {"username": "x"}, b"{}", "password can not be blank"),
    (3001, {"username": "x"}, b'{"password":"' + b"x" * 256 + b'"}', "the limit is 255"),
    (3001, {"username": "x"}, b'{"password":"x","userType":"Sup"}', "super or normal"),
    (3001, {"username": "consumer"}, b'{"password":"x"}', "The user is existed"),
    (3002, {"username": "x"}, b"{}", "The user is not exist"),
    (3002, {"username": "consumer"}, b'{"userStatus":"off"}', "expected enable or disable"),
    (3006, {"subject": "User:x"}, acl("x", [("*", "All", "Allow")]), "The subject of User:x is not exist."),
    (3006, {"subject": "Role:x"}, b'{"policies":[{}]}', "expected User: and a name"),
    (3006, {"subject": "User:consumer"}, b"{}", "The policies is empty."),
    (3006, {"subject": "User:consumer"}, b'{"policies":[{}]}', "The policy entries is empty."),
    (3006, {"subject": ""}, acl("consumer", [("Topics:a", "All", "Allow")]), "expected * or Cluster"),
    (3006, {"subject": ""}, acl("consumer", [("Topic:a", "Any", "Allow")]), "the action 'Any'"),
    (3006, {"subject": ""}, acl("consumer", [("Topic:a", "All", "Yes")]), "expected allow or deny"),
    (3006, {"subject": ""}, acl("consumer", [("Topic:a", "All", "Allow")], sourceIps=["x"]), "IPv"),
    (3006, {"subject": ""}, acl("consumer", [("Topic:a", "All", "Allow")], actions=[]), "actions is empty"),
    (3006, {"subject": ""}, acl("consumer", [("", "All", "Allow")]), "The resource is null."),
    (3006, {"subject": ""}, acl("consumer", [(f"Topic:{i}", "All", "Allow") for i in range(MAX_ENTRIES)]),
     "the limit"),
    (3006, {"subject": ""},
     acl("consumer", [("*", "All", "Allow")], sourceIps=[f"10.0.0.{i}" for i in range(33)]),
     "the entry has 33 source addresses; the limit is 32"),
    (3008, {"subject": "User:x"}, b"", "The subject is not exist."),
    (3008, {"subject": "User:consumer", "resource": "x"}, b"", "the resource 'x'"),
    (3008, {"subject": "User:consumer", "resource": "*", "policyType": "x"}, b"", "custom or default"),
]  # fmt: skip


def test_what_cannot_be_meant_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        before = pack_parts(world.broker.store.state)
        for code, header, body, remark in WRONG:
            reply = await ask(world, code, header, body)
            assert reply.code != 0 and remark in (reply.remark or ""), (code, header, body, reply.remark)
        assert pack_parts(world.broker.store.state) == before

    run(test)


def test_users_entries_and_answers_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dledger.broker.auth.auth_processor"

    async def test() -> None:
        world = await opened(tmp_path)
        monkeypatch.setattr(f"{module}.MAX_USERS", 5)
        reply = await create(world, "sixth")
        assert (reply.code, reply.remark) == (1, "the limit of 5 users is reached")
        assert (await create(world, "consumer")).code == 0, "it is there"
        monkeypatch.setattr(f"{module}.MAX_ACL_ENTRIES", 7)
        subject, more = {"subject": "User:nobody"}, acl("nobody", [("*", "All", "Deny")])
        reply = await ask(world, RequestCode.AUTH_CREATE_ACL, subject, more)
        assert reply.code == 1 and "7 of all" in (reply.remark or "")
        again = acl("consumer", [("Topic:orders", "Sub", "Deny")])
        assert (await ask(world, RequestCode.AUTH_UPDATE_ACL, {"subject": "User:consumer"}, again)).code == 0
        monkeypatch.setattr(f"{module}.MAX_ANSWER", 100)
        for code in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_LIST_ACL):
            reply = await ask(world, code, {})
            assert (reply.code, reply.remark) == (1, "the list has more than 100 bytes: ask with a filter")

    run(test)


def test_what_is_done_already_is_done(tmp_path: Path) -> None:
    """mqadmin tells every broker of a cluster, and each tells the leader."""

    async def test() -> None:
        world = await opened(tmp_path)
        before = world.node.log.last_index
        assert (await create(world, "consumer")).code == 0
        again = acl("consumer", POLICIES["consumer"])
        assert (await ask(world, RequestCode.AUTH_CREATE_ACL, {"subject": "User:consumer"}, again)).code == 0
        none = {"subject": "User:consumer", "resource": "Topic:never"}
        assert (await ask(world, RequestCode.AUTH_DELETE_ACL, none)).code == 0
        assert world.node.log.last_index == before

    run(test)


def test_what_is_done_but_not_committed_is_not_answered(tmp_path: Path) -> None:
    """Two equal requests are both answered only after the entry is applied."""

    async def test() -> None:
        world = await opened(tmp_path)
        header, body = {"username": "twice"}, b'{"password":"x"}'
        signed = Credentials("root", "root-secret").sign(header, body)
        asked = [world.ask(RequestCode.AUTH_CREATE_USER, signed, body) for _ in range(2)]
        assert not any(one.done for one in asked)
        assert [(await one).code for one in asked] == [0, 0]

    run(test)


def test_nothing_is_written_before_all_voters_know_it(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(str(tmp_path / "store"))
        await world.open()
        assert world.node.appender is not None
        world.node.appender.state_version = 6
        reply = await world.call(3001, {"username": "x"}, b'{"password":"x"}')
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and "state version 7" in (reply.remark or "")

    run(test)


def test_a_late_change_undoes_no_later_one(tmp_path: Path) -> None:
    """A disabled user was enabled again by a request that had lain at a stopped broker."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        user = UserInfo("ann", "secret").encode()
        await world.call(RequestCode.AUTH_CREATE_USER, UserHeader("ann"), user)

        async def version() -> int:
            return int((await world.call(RequestCode.AUTH_GET_USER, UserHeader("ann"))).ext["version"])

        async def status(wanted: str, at: int | None) -> int:
            body = UserInfo("ann", userStatus=wanted).encode()
            return (await world.call(RequestCode.AUTH_UPDATE_USER, UserHeader("ann", at), body)).code

        def enabled() -> bool:
            return world.broker.store.state[USERS].rows["ann"].enabled

        seen = await version()
        assert await status("disable", seen) == 0 and not enabled()
        assert await status("disable", seen) == 0, "an answer was lost: it is done"
        enabling = await version()
        assert await status("enable", enabling) == 0 and enabled()
        assert await status("disable", await version()) == 0
        assert await status("enable", enabling) == ResponseCode.SYSTEM_BUSY and not enabled()
        before = await version()
        policies = acl("ann", [("Topic:orders", "Pub", "Allow")])
        for code in (RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, RequestCode.AUTH_DELETE_ACL):
            deletes = code == RequestCode.AUTH_DELETE_ACL
            kind, body = (DeleteAclHeader, b"") if deletes else (SubjectHeader, policies)
            late = await world.call(code, kind("User:ann", version=await version() - 1), body)
            done = code == RequestCode.AUTH_UPDATE_ACL
            assert late.code == (0 if done else ResponseCode.SYSTEM_BUSY)
            assert (await world.call(code, kind("User:ann", version=await version()), body)).code == 0
        late = await world.call(RequestCode.AUTH_DELETE_USER, UserHeader("ann", before))
        assert late.code == ResponseCode.SYSTEM_BUSY and "changed since" in (late.remark or "")
        gone = await version()
        assert (await world.call(RequestCode.AUTH_DELETE_USER, UserHeader("ann", gone))).code == 0
        late = await world.call(RequestCode.AUTH_CREATE_USER, UserHeader("ann", gone), user)
        assert late.code == ResponseCode.SYSTEM_BUSY, "a deleted user does not come back"
        assert not world.broker.store.state[USERS].rows
        assert (await world.call(RequestCode.AUTH_CREATE_USER, UserHeader("ann"), user)).code == 0

    run(test)


def test_without_authentication_everybody_manages_users(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path / "store")).open()
        assert world.features.auth.access is None
        body = b'{"password":"x","userType":"Super"}'
        assert (await world.call(3001, {"username": "x"}, body)).code == 0
        assert json.loads((await world.call(3004, {"username": "x"})).body)["password"] == "x"

    run(test)


def test_without_authorization_who_signs_may_do_everything(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path, authorization_enabled=False, authentication_whitelist=(int(PULL),))
        assert refusal(world, "nobody", RequestCode.AUDIT_ENTRIES, None) == ""
        assert refusal(world, None, SEND, send_to("orders")) == "username cannot be null."
        assert refusal(world, None, PULL, pull_from("orders", "readers")) == ""

    run(test)


def test_white_lists_of_codes(tmp_path: Path) -> None:
    """What policies judge is signed, whatever the first list says."""

    async def test() -> None:
        world = await opened(
            tmp_path,
            authentication_whitelist=(int(PULL), int(SEND)),
            authorization_whitelist=(int(PULL), int(ACK)),
        )
        assert refusal(world, None, PULL, pull_from("orders", "readers")) == ""
        assert refusal(world, None, SEND, send_to("orders")) == "username cannot be null."
        assert refusal(world, "nobody", ACK, {"topic": "orders", "consumerGroup": "x"}) == ""
        assert (
            refusal(world, None, ACK, {"topic": "orders", "consumerGroup": "x"}) == "username cannot be null."
        )

    run(test)


def test_an_address_that_a_member_forwards_for_counts(tmp_path: Path) -> None:
    async def test() -> None:
        world = await opened(tmp_path)
        member = Member(world)
        rule = acl("nobody", [("Topic:orders", "Pub", "Allow")], sourceIps=["10.8.0.0/16"])
        assert (await ask(world, RequestCode.AUTH_CREATE_ACL, {"subject": "User:nobody"}, rule)).code == 0
        signed = Credentials("nobody", "nobody-secret").sign(fields_of(send_to("orders")), b"x")
        fields = signed | {"forwardedFor": "10.8.1.1:4000"}
        how: dict[str, Any] = {"flag": FLAG_FORWARDED, "connection": member.connection}
        assert refusal(world, None, SEND, fields, b"x", **how) != "", "nothing proves it"
        proven = member.proven(SEND, fields, b"x", FLAG_FORWARDED)
        assert refusal(world, None, SEND, proven, b"x", **how) == ""
        assert refusal(world, None, SEND, proven, b"x", **how) != "", "it came before"
        near = FakeConnection(peer="10.8.0.1:5")
        assert refusal(world, "nobody", SEND, send_to("orders"), b"x", connection=near) == ""
        assert refusal(world, "nobody", SEND, send_to("orders"), b"x") == no("Topic:orders", "nobody")

    run(test)


def test_decisions_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_access, "MAX_DECISIONS", 5)

    async def test() -> None:
        world = await opened(tmp_path)
        for number in range(20):
            assert refusal(world, "producer", SEND, send_to(f"log{number}"), b"x") == ""
            assert refusal(world, "producer", SEND, send_to(f"no{number}"), b"x") != ""
            view = world.features.auth.access._view  # type: ignore[union-attr]
            assert len(view.decided) + sum(len(who.sends) for who in view._known.values()) <= 5

    run(test)


ACCOUNTS = """
globalWhiteRemoteAddresses: [10.7.0.1]
accounts:
  - accessKey: manager
    secretKey: manager-secret
    admin: true
  - accessKey: application
    secretKey: application-secret
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: DENY
    topicPerms: [closed=DENY, in=SUB]
    groupPerms: [readers=SUB]
"""


def test_accounts_of_a_file_become_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)

    async def test() -> None:
        world = await opened(tmp_path, migrate_auth=True, acl_file=str(file))
        users, table = world.broker.store.state[USERS].rows, world.broker.store.state[ACLS]
        async with asyncio.timeout(20):
            while "application" not in users:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert users["manager"] == User("manager", "manager-secret", superuser=True)
        assert {table.rows[key] for key in table.keys_of("user", "application")} == {
            AclEntry("application", "Custom", "Topic:closed", ("All",), False),
            AclEntry("application", "Custom", "Topic:in", ("Sub",), True),
            AclEntry("application", "Custom", "Group:readers", ("Sub",), True),
            AclEntry("application", "Default", "Topic:*", ("Pub", "Sub"), True),
            AclEntry("application", "Default", "Group:*", ("All",), False),
        }
        assert refusal(world, "application", SEND, send_to("any"), b"x") == ""
        assert refusal(world, "application", SEND, send_to("closed"), b"x") != ""
        assert refusal(world, "application", PULL, pull_header("in", 0, 0, consumerGroup="readers")) == ""
        assert refusal(world, "manager", RequestCode.AUDIT_ENTRIES, None) == ""
        assert "are not migrated" in caplog.text

    run(test)


def test_a_leader_creates_its_first_user_once_and_waits_for_the_voters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dledger.broker.auth.init_users.RETRY_S", 0.01)

    async def test() -> None:
        world = World(str(tmp_path / "store"), **ON)
        await world.node.open()
        world.node.lead()
        assert world.node.appender is not None
        world.node.appender.state_version = 6
        task = asyncio.create_task(world.broker.leadership.services.run())
        users = world.broker.store.state[USERS].rows
        async with asyncio.timeout(20):
            while "user not created now" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert not users
        world.node.appender.state_version = 7
        async with asyncio.timeout(20):
            while not users:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert users == {"root": ROOT}
        root, body = {"username": "root"}, b'{"password":"changed"}'
        assert (await ask(world, RequestCode.AUTH_UPDATE_USER, root, body)).code == 0
        world.node.follow(None)
        world.node.lead()  # what was changed since stays
        await asyncio.sleep(0.02)
        assert users["root"].password == "changed"
        task.cancel()

    run(test)


def test_views_of_the_state_show_no_passwords() -> None:
    state = ReplicatedState()
    state.apply(pack_op(ROOT.op()))
    assert [row.data for row in state.rows_of_view() if row.kind == "user"] == [
        {"enabled": True, "name": "root", "superuser": True}
    ]


def test_only_audits_and_brokers_need_a_super_user_without_saying_what_they_do() -> None:
    """An administrator's request of ACL 1.0 that says nothing more is for super users only (ACL 2.0)."""
    unsaid = [one.code for one in declarations(processor_kinds()) if one.may.admin and one.does is None]
    assert {code.name.partition("_")[0] for code in unsaid} == {"AUDIT", "TELL", "CHECK"}
