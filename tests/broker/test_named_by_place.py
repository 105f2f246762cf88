"""What a request names by its place in the log is judged by what is found there, with users as with
accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.formats.message_ids import decode_message_id
from dledger.formats.state import TRANSACTIONS
from dledger.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import Reply, World, run
from tests.broker.test_access_control import FILE
from tests.broker.test_delays import came, leading
from tests.broker.test_transactions import HALF
from tests.broker.test_user_access import ON, acl, ask, create

POLICIES = {
    "producer": [("Topic:orders", "Pub", "Allow")],
    "consumer": [("Topic:orders", "Sub", "Allow"), ("Group:readers", "Sub", "Allow")],
}
KINDS = pytest.mark.parametrize("kind", ["users", "accounts"])


def setting(tmp_path: Path, kind: str) -> dict[str, Any]:
    if kind == "users":
        return ON
    (tmp_path / "acl.yml").write_text(FILE)
    return {"acl_enable": True, "acl_file": str(tmp_path / "acl.yml")}


async def with_accounts(world: World, kind: str) -> str:
    """Name of one who may do everything."""
    if kind == "accounts":
        return "operator"
    for name, entries in POLICIES.items():
        await create(world, name)
        subject = {"subject": f"User:{name}"}
        assert (await ask(world, RequestCode.AUTH_CREATE_ACL, subject, acl(name, entries))).code == 0
    return "root"


async def send(world: World, topic: str, properties: str = "") -> Reply:
    reply = await world.send(topic, topic.encode(), 0, properties)
    assert reply.code == 0, reply.remark
    return reply


def place(sent: Reply) -> str:
    return str(decode_message_id(sent.ext["msgId"]).physical_offset)


def denied(world: World) -> int:
    assert world.features.auth.access is not None
    return world.features.auth.access.denied


@KINDS
def test_nobody_gives_back_what_its_group_may_not_read(tmp_path: Path, kind: str) -> None:
    async def test() -> None:
        async with leading(tmp_path / "store", **setting(tmp_path, kind)) as world:
            everything = await with_accounts(world, kind)

            async def back(at: str, who: str = "consumer") -> Reply:
                header = {"offset": at, "group": "readers", "delayLevel": "1", "originTopic": "orders"}
                return await ask(world, RequestCode.CONSUMER_SEND_MSG_BACK, header, who=who)

            theirs, own = await send(world, "bills"), await send(world, "orders")
            waiting = await send(world, "bills", "DELAY\x0118\x02")
            before = denied(world)
            for at in (place(theirs), place(waiting)):
                reply = await back(at)
                assert reply.code == ResponseCode.NO_PERMISSION and "bills" in str(reply.remark)
            assert denied(world) == before + 2
            assert (await back(place(own))).code == 0
            [copy] = await came(world, "%RETRY%readers")
            assert copy.body == b"orders"
            assert (await back(str(copy.physical_offset))).code == 0  # a second time
            assert (await back(place(theirs), everything)).code == 0
            bodies = [one.body for one in await came(world, "%RETRY%readers", count=3)]
            assert bodies == [b"orders", b"orders", b"bills"]

    run(test)


@KINDS
@pytest.mark.parametrize("said", [{}, {"topic": "orders"}])
def test_nobody_ends_a_transaction_of_a_topic_that_is_closed_to_it(
    tmp_path: Path, kind: str, said: dict[str, str]
) -> None:
    async def test() -> None:
        async with leading(tmp_path / "store", **setting(tmp_path, kind)) as world:
            await with_accounts(world, kind)

            async def end(sent: Reply, how: int) -> Reply:
                header = {
                    "producerGroup": "PG",
                    "tranStateTableOffset": sent.ext["queueOffset"],
                    "commitLogOffset": place(sent),
                    "commitOrRollback": str(how),
                    "msgId": "KEY",
                }
                return await ask(world, RequestCode.END_TRANSACTION, header | said, who="producer")

            theirs = await send(world, "bills", HALF)
            own = await send(world, "orders", HALF)
            for how in (8, 12):
                reply = await end(theirs, how)
                assert reply.code == ResponseCode.NO_PERMISSION and "bills" in str(reply.remark)
            assert len(world.broker.store.state[TRANSACTIONS].rows) == 2
            assert (await end(own, 8)).code == 0

    run(test)
