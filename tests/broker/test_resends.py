"""A message that is sent again is stored once, and its producer hears what the first send came to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.intake import resends
from dledger.broker.intake.resends import RESEND_TEXT
from dledger.broker.store import index_service, key_files
from dledger.broker.store.index_service import IndexBehind
from dledger.broker.store.message_store import StoreLimits
from dledger.formats.checksum import crc32
from dledger.formats.properties import encode_properties
from dledger.formats.record import CRC_MASK
from dledger.formats.state import RESENDS, Resend
from dledger.formats.timers import TIMER_TOPIC
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import SerializeType
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.settings import Property
from tests.broker.fake_node import FakeLog
from tests.broker.harness import FakeConnection, Pending, Reply, World, run, send_header, skip_s
from tests.broker.test_send import batch_body
from tests.client.fake_cluster import eventually

LIMITS = StoreLimits(index_slots=7, index_units=100)
PATIENCE_S = 60.0
"""How long a send waits for the index and for a term here: no pause of the machine uses it up."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends that do not say that they are repetitions wait as long as the others."""
    monkeypatch.setattr(resends, "PATIENCE_OF_OTHERS_S", PATIENCE_S)


@contextlib.asynccontextmanager
async def serving(root: Path, log: FakeLog | None = None, **changes: Any) -> AsyncIterator[World]:
    """A broker that leads, with what it does in the background."""
    world = World(str(root), log, **({"store": LIMITS, "queue_wait_s": PATIENCE_S} | changes))
    broker = world.broker
    tasks = [asyncio.ensure_future(work) for work in (broker.index.run(), broker.core.background.run())]
    tasks.append(asyncio.ensure_future(broker.leadership.services.run()))
    await world.open()
    await asyncio.sleep(0)
    try:
        yield world
        assert not any(task.done() and task.exception() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def first(unique_id: str = "ID1", **more: str) -> str:
    return encode_properties({"UNIQ_KEY": unique_id, "WAIT": "true", **more})


def again(unique_id: str = "ID1", **more: str) -> str:
    return first(unique_id, **more) + RESEND_TEXT


def keyed(unique_id: str = "ID1", **more: str) -> str:
    """The unique id is an idempotency key."""
    return first(unique_id, __IDEMPOTENT="1", **more) + RESEND_TEXT


def keyed_batch(world: World, *bodies: bytes, queue: int = 0, **ids: str) -> Pending:
    """A batch whose messages have their bodies as keys, or those of `ids`."""
    messages = [(body, keyed(ids.get(body.decode(), body.decode())).encode()) for body in bodies]
    return world.send("T", batch_body(*messages), queue, "", batch=True)


def place(reply: Reply) -> tuple[int, str, str, str]:
    assert reply.code == ResponseCode.SUCCESS, reply
    return reply.code, reply.ext["msgId"], reply.ext["queueId"], reply.ext["queueOffset"]


async def count(world: World, topic: str = "T", queue: int = 0) -> int:
    return world.broker.store.state.next_offset(topic, queue)


@pytest.mark.parametrize("come", [False, True], ids=["waits", "has come"])
def test_a_timer_message_waits_once_and_can_be_recalled_by_either_answer(tmp_path: Path, come: bool) -> None:
    """It is found where it waits, and its time may be over when it is sent again."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            due = {"TIMER_DELIVER_MS": str(world.clock.value + 10_000)}
            one = await world.send("T", b"hello", 2, first(**due))
            assert one.ext["recallHandle"]
            if come:
                world.clock.value += 11_000
                world.features.timer.service._wake.set()
                await eventually(lambda: world.broker.store.state.next_offset("T", 2) == 1)
            two = await world.send("T", b"hello", 2, again(**due))
            assert place(two) == place(one)
            assert two.ext["recallHandle"] == one.ext["recallHandle"]
            assert await count(world, TIMER_TOPIC) == 1
            assert await count(world, "T", 2) == come

    run(test)


def test_a_timer_message_that_came_at_once_is_stored_once(tmp_path: Path) -> None:
    """It never was where timer messages wait."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            due = {"TIMER_DELIVER_MS": str(world.clock.value - 1)}
            one = await world.send("T", b"hello", 2, first(**due))
            two = await world.send("T", b"hello", 2, again(**due))
            assert place(two) == place(one) and await count(world, "T", 2) == 1
            assert await count(world, TIMER_TOPIC) == 0

    run(test)


def test_the_second_send_is_answered_with_the_first_ones_result(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before", 2)
            one = await world.send("T", b"hello", 2, first())
            await world.send("T", b"behind", 2)
            for queue in (2, 1):  # RocketMQ's clients choose another queue for it
                two = await world.send("T", b"hello", queue, again())
                assert place(two) == place(one) and two.ext == one.ext
            assert await count(world, queue=2) == 3 and await count(world, queue=1) == 0
            assert world.features.intake.resends.recognized == 2

    run(test)


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_in_either_serialization(tmp_path: Path, serialize: SerializeType) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            code = RequestCode.SEND_MESSAGE_V2
            one = await world.call(code, send_header("T", 0, first()), b"x", serialize=serialize)
            two = await world.call(code, send_header("T", 0, again()), b"x", serialize=serialize)
            assert two.ext == one.ext and await count(world) == 1

    run(test)


def test_a_first_send_that_did_not_come_is_made_up_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await world.send("T", b"hello", 0, again())
            assert place(one)[3] == "0"
            two = await world.send("T", b"hello", 0, again())
            assert place(two) == place(one)
            # And the first send comes after all.
            late = await world.send("T", b"hello", 3, first())
            assert place(late) == place(one)
            assert await count(world) == 1 and await count(world, queue=3) == 0

    run(test)


def test_while_the_first_is_not_committed_the_second_waits_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before")
            world.node.auto = False
            one = world.send("T", b"hello", 0, first())
            two = world.send("T", b"hello", 0, again())
            await asyncio.sleep(0.05)
            assert not one.done and not two.done
            world.node.auto = True
            world.node.commit()
            assert place(await two) == place(await one)
            assert await count(world) == 2

    run(test)


def test_of_two_that_are_looked_for_at_once_one_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before")
            texts = [again(), again(), first(), again("ID2"), again()]
            asked = [world.send("T", b"hello", 0, text) for text in texts]
            places = [place(await one) for one in asked]
            assert places[0] == places[1] == places[2] == places[4] != places[3]
            assert await count(world) == 3

    run(test)


def test_the_next_leader_knows_it_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await world.send("T", b"hello", 0, first())
            two = await world.send("T", b"other", 0, again("ID2"))
            world.node.follow("n1")
            world.node.lead()
            assert place(await world.send("T", b"hello", 0, again())) == place(one)
            assert place(await world.send("T", b"other", 0, first("ID2"))) == place(two)
            assert await count(world) == 2

    run(test)


def test_what_was_not_answered_when_leadership_ended_was_not_executed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before")
            world.node.auto = False
            world.send("T", b"lost", 0, first("ID2"))
            waits = world.send("T", b"hello", 0, again())
            await asyncio.sleep(0.02)
            world.node.follow("n1")
            assert (await waits).code == ResponseCode.SERVICE_NOT_AVAILABLE
            world.node.auto = True
            world.node.lead()
            assert place(await world.send("T", b"hello", 0, again()))[3] == "1"
            assert not world.features.intake.resends.looking

    run(test)


def test_a_hand_over_that_fails_goes_on_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, hold_while_opening_s=PATIENCE_S) as world:
            await world.send("T", b"before")
            world.node.auto = False
            world.send("T", b"other")
            waits = world.send("T", b"hello", 0, again())
            await asyncio.sleep(0.02)
            world.broker.gate.pause()
            world.node.auto = True
            world.node.commit()
            await eventually(lambda: world.broker.gate._held)
            assert not waits.done
            writer = world.broker.leadership._writer
            assert writer is not None
            world.broker.gate.open(writer)
            assert place(await waits)[3] == "2"

    run(test)


def test_another_body_or_topic_is_another_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await world.send("T", b"hello", 0, first())
            other = await world.send("T", b"hullo", 0, again())
            elsewhere = await world.send("U", b"hello", 0, again())
            assert place(other) != place(one) and place(elsewhere)[1] != place(one)[1]
            assert await count(world) == 2 and await count(world, "U") == 1

    run(test)


def test_a_user_key_that_looks_like_an_id_is_none(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"hello", 0, encode_properties({"UNIQ_KEY": "ID0", "KEYS": "ID1"}))
            assert place(await world.send("T", b"hello", 0, again()))[3] == "1"

    run(test)


def test_delayed_and_half_messages_are_recognised_where_they_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await world.send("T", b"later", 3, first(DELAY="2"))
            two = await world.send("T", b"later", 3, again(DELAY="2"))
            assert place(two) == place(one) and place(two)[2] == "3"
            half = {"TRAN_MSG": "true", "PGROUP": "PG"}
            one = await world.send("T", b"half", 1, first("ID2", **half), sysFlag=4)
            two = await world.send("T", b"half", 1, again("ID2", **half), sysFlag=4)
            assert place(two) == place(one) and place(two)[2] == "1"
            assert world.features.transaction.checks.open == 1

    run(test)


def test_copies_that_consumers_give_back_are_all_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, duplicate_check_topics=("*",)) as world:
            await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"CG"}')
            await world.call(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": "%RETRY%CG", "defaultTopic": "TBW102", "readQueueNums": "1", "perm": "6",
                    "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
                    "order": "false",
                },
            )  # fmt: skip
            for number in range(2):
                reply = await world.send("%RETRY%CG", b"hello", 0, again(), reconsumeTimes=number)
                assert reply.ext["queueOffset"] == str(number)

    run(test)


def test_a_batch_is_recognised_as_a_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            bodies = (b"one", b"two", b"three")

            async def send(make: Any, many: tuple[bytes, ...] = bodies) -> Reply:
                messages = [(body, make(body.decode()).encode()) for body in many]
                return await world.send("T", batch_body(*messages), 0, "", batch=True)

            one = await send(first)
            assert len(one.ext["msgId"].split(",")) == 3
            two = await send(again)
            assert place(two) == place(one) and two.ext == one.ext
            # One that shares its first message with it is another batch.
            assert place(await send(again, (b"one", b"zwei")))[3] == "3"
            # A repetition that was stored, and then the first send.
            lost = (b"four", b"five")
            three = await send(again, lost)
            assert place(await send(first, lost)) == place(three) and place(three)[3] == "5"
            assert await count(world) == 7
            assert len(world.broker.store.state[RESENDS].rows) == 2

    run(test)


def test_messages_of_a_batch_are_recognised_when_they_are_sent_alone(tmp_path: Path) -> None:
    """Also in another order. Another batch of the same messages is stored again."""

    async def test() -> None:
        async with serving(tmp_path) as world:

            async def batch(*bodies: bytes) -> Reply:
                messages = [(body, again(body.decode()).encode()) for body in bodies]
                return await world.send("T", batch_body(*messages), 0, "", batch=True)

            ids = (await batch(b"one", b"two", b"three")).ext["msgId"].split(",")
            for number, body in ((2, b"three"), (0, b"one"), (1, b"two")):
                alone = await world.send("T", body, 1, again(body.decode()))
                assert place(alone)[2:] == ("0", str(number)), ids
            assert await count(world) == 3 and await count(world, queue=1) == 0
            assert place(await batch(b"two", b"three"))[3] == "1", "a part in the same order"
            for other in ((b"two", b"one"), (b"three", b"four"), (b"one", b"three")):
                assert int(place(await batch(*other))[3]) >= 3, other

    run(test)


def test_other_clients_are_recognised_in_the_topics_that_say_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, duplicate_check_topics=("T",)) as world:
            one, two = world.send("T", b"x", 0, first()), world.send("T", b"x", 1, first())
            assert place(await one) == place(await two)
            assert [(await world.send("U", b"x", 0, first())).ext["queueOffset"] for _ in "12"] == ["0", "1"]
            # Who gives no id repeats nothing.
            assert [(await world.send("T", b"x", 0)).ext["queueOffset"] for _ in "12"] == ["1", "2"]
            assert not world.broker.store.state[RESENDS].rows

    run(test)


def test_the_switch_works_while_the_broker_runs(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "broker.conf"
        path.write_text("duplicateCheckTopics=U\n")
        async with serving(tmp_path, source=SettingsSource(str(path))) as world:
            one = await world.send("T", b"x", 0, first())
            assert await world.broker.settings.update([Property("duplicateCheckTopics", "*", 1)])
            assert place(await world.send("T", b"x", 1, first())) == place(one)

    run(test)


@pytest.mark.parametrize("error", [IndexBehind("it is 7 bytes behind"), OSError(errno.EMFILE, "behind")])
def test_an_index_that_is_behind_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"hello", 0, first())
            find = index_service.IndexService.find
            asked = 0

            async def behind(*_: Any) -> list[list[int]]:
                nonlocal asked
                asked += 1
                raise error

            monkeypatch.setattr(index_service.IndexService, "find", behind)
            waits = world.send("T", b"hello", 0, again())
            await eventually(lambda: asked >= 3)
            assert not waits.done, "it is looked for again until its time is over"
            await skip_s(PATIENCE_S)
            reply = await waits
            assert reply.code == ResponseCode.SYSTEM_BUSY and "behind" in (reply.remark or "")
            assert await count(world) == 1 and not world.features.intake.resends.looking
            monkeypatch.setattr(index_service.IndexService, "find", find)
            assert place(await world.send("T", b"hello", 0, again()))[3] == "0"

    run(test)


def test_without_an_index_a_repetition_is_stored_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, store=StoreLimits(index_enable=False)) as world:
            for offset in ("0", "1"):
                assert (await world.send("T", b"hello", 0, again())).ext["queueOffset"] == offset

    run(test)


def test_too_many_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"hello", 0, first())
            monkeypatch.setattr(resends, "MAX_WAITING", 2)
            asked = [world.send("T", b"hello", 0, again()) for _ in range(3)]
            codes = [(await one).code for one in asked]
            assert codes == [0, 0, ResponseCode.SYSTEM_BUSY]

    run(test)


def test_as_many_ids_are_remembered_as_the_limit_says_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(resends, "MAX_RESENDS", 3)
        async with serving(tmp_path) as world:
            rows = world.broker.store.state[RESENDS].rows
            for number in range(5):
                world.clock.value += 1
                await world.send("T", b"hello", 0, again(f"ID{number}"))
            assert sorted(rows) == ["ID2", "ID3", "ID4"]
            world.clock.value += resends.RESEND_LIVE_MS + 1
            await world.send("T", b"hello", 0, again("ID5"))
            assert sorted(rows) == ["ID4", "ID5"]  # two go with each that comes
            assert set(world.features.intake.resends.stored) == {b"ID4", b"ID5"}

    run(test)


def test_while_a_voter_knows_no_such_table_nothing_is_remembered(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 5
            one = await world.send("T", b"hello", 0, again())
            assert place(await world.send("T", b"hello", 0, again())) == place(one)
            assert not world.broker.store.state[RESENDS].rows

    run(test)


def test_who_is_gone_gets_nothing_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            gone = FakeConnection(serial=2)
            world.send("T", b"hello", 0, again(), connection=gone)
            gone.closed = True
            assert place(await world.send("T", b"other", 0, again("ID2")))[3] == "0"

    run(test)


def test_rows_have_bounds() -> None:
    row = Resend("ID", 1)
    assert row.op() == {"op": "resend", "id": "ID", "time": 1}
    assert RESENDS.removal("ID") == {"op": "resend_over", "id": "ID"}


# --- idempotency keys ---------------------------------------------------------------------------------


def stored_of(reply: Reply) -> list[int]:
    """Which messages of a batch are stored already."""
    assert reply.code == ResponseCode.ALREADY_STORED, reply
    return [int(number) for number in reply.ext["storedMessages"].split(",")]


def test_a_batch_with_keys_is_recognised_message_by_message(tmp_path: Path) -> None:
    """In any order, in part, sent alone or in batches; and nothing is stored of a batch that is known in
    part."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await keyed_batch(world, b"one", b"two", b"three")
            assert len(one.ext["msgId"].split(",")) == 3
            assert one.ext["keysLookedUp"] == "3", "so that the sink knows that each key was looked up"
            assert stored_of(await keyed_batch(world, b"three", b"one", b"two", queue=1)) == [0, 1, 2]
            assert stored_of(await keyed_batch(world, b"four", b"two", b"five", b"one")) == [1, 3]
            assert place(await keyed_batch(world, b"four", b"five"))[3] == "3"
            alone = await world.send("T", b"two", 1, keyed("two"))
            assert place(alone)[2:] == ("0", "1") and "keysLookedUp" not in alone.ext
            await world.send("T", b"six", 1, keyed("six"))
            assert stored_of(await keyed_batch(world, b"seven", b"six")) == [1]
            assert stored_of(await keyed_batch(world, b"six")) == [0], "a batch of one"
            assert await count(world) == 5 and await count(world, queue=1) == 1
            assert world.features.intake.resends.recognized == 3 + 2 + 1 + 1 + 1
            assert not world.features.intake.resends.looking

    run(test)


def test_batches_with_keys_in_flight_at_once_are_stored_once(tmp_path: Path) -> None:
    """Each waits for those before it that have a key of it."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before")
            world.node.auto = False
            asked = [
                keyed_batch(world, *bodies)
                for bodies in ((b"a", b"b"), (b"b", b"c"), (b"d",), (b"c", b"a"), (b"c", b"e"))
            ]
            alone = world.send("T", b"b", 0, keyed("b"))
            await asyncio.sleep(0.05)
            assert not any(one.done for one in asked) and not alone.done
            world.node.auto = True
            world.node.commit()
            replies = [await one for one in asked]
            assert stored_of(replies[1]) == [0] and stored_of(replies[3]) == [1]
            assert place(await alone)[3] == "2"
            assert [reply.code for reply in replies].count(ResponseCode.SUCCESS) == 3
            assert await count(world) == 1 + 2 + 1 + 2

    run(test)


@pytest.mark.parametrize("batch", [False, True])
def test_a_key_names_one_body(tmp_path: Path, batch: bool) -> None:
    """The refusal names both. In another topic the key is free."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"before", 1)
            await world.send("T", b"hello", 1, keyed("K"))
            if batch:
                refused = await keyed_batch(world, b"x", b"hullo", hullo="K")
            else:
                refused = await world.send("T", b"hullo", 2, keyed("K"))
            assert refused.code == ResponseCode.ILLEGAL_OPERATION
            crcs = [f"{crc32(body) & CRC_MASK:08x}" for body in (b"hello", b"hullo")]
            for part in ("id K is stored with another body: topic T, queue 1, offset 1", *crcs):
                assert part in (refused.remark or ""), refused.remark
            assert await count(world) == await count(world, queue=2) == 0
            assert place(await world.send("T", b"hello", 2, keyed("K")))[2:] == ("1", "1")
            assert (await world.send("U", b"hullo", 0, keyed("K"))).code == ResponseCode.SUCCESS
            # Without the mark it is another message, as before; and then either body is known.
            assert (await world.send("T", b"hullo", 3, again("K"))).code == ResponseCode.SUCCESS
            for body, queue in ((b"hello", "1"), (b"hullo", "3")):
                assert place(await world.send("T", body, 0, keyed("K")))[2] == queue

    run(test)


def test_messages_with_keys_are_recognised_whoever_stored_them(tmp_path: Path) -> None:
    """By sends with and without the mark, by the next leader; and they need no row in the table of ids."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            one = await world.send("T", b"hello", 0, first("K"))
            assert place(await world.send("T", b"hello", 1, keyed("K"))) == place(one)
            await keyed_batch(world, b"two", b"three")
            world.node.follow("n1")
            world.node.lead()
            assert stored_of(await keyed_batch(world, b"three", b"four")) == [0]
            assert place(await world.send("T", b"two", 0, again("two")))[3] == "1"
            assert (await world.send("T", b"alone", 0, keyed("alone"))).code == ResponseCode.SUCCESS
            assert not world.broker.store.state[RESENDS].rows

    run(test)


def test_a_mark_without_the_other_is_none(tmp_path: Path) -> None:
    """A key that its producer does not mark as sent again may be looked up by nobody."""

    async def test() -> None:
        async with serving(tmp_path) as world:
            await world.send("T", b"hello", 0, first("K", __IDEMPOTENT="1"))
            await world.send("T", b"hullo", 0, first("K", __IDEMPOTENT="1"))
            assert await count(world) == 2
            unlike = await world.send("T", b"hillo", 0, first("K", __IDEMPOTENT="0") + RESEND_TEXT)
            assert place(unlike)[3] == "2"

    run(test)


def test_a_batch_in_which_keys_are_mixed_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            for texts in (
                (keyed("a"), again("b")),
                (keyed("a"), keyed("a")),
                (keyed("a"), first("b")),
                (first("b"), keyed("a")),
                (again("b"), keyed("a")),
                (RESEND_TEXT, keyed("a")),
            ):
                messages = [(b"%d" % number, text.encode()) for number, text in enumerate(texts)]
                reply = await world.send("T", batch_body(*messages), 0, "", batch=True)
                assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "__IDEMPOTENT" in (reply.remark or "")
            assert await count(world) == 0 and not world.features.intake.resends.looking

    run(test)


@pytest.mark.parametrize("batch", [False, True])
def test_a_key_that_cannot_be_looked_up_is_refused(tmp_path: Path, batch: bool) -> None:
    async def test() -> None:
        async with serving(tmp_path, store=StoreLimits(index_enable=False)) as world:
            if batch:
                reply = await keyed_batch(world, b"a", b"b")
            else:
                reply = await world.send("T", b"hello", 0, keyed())
            assert reply.code == ResponseCode.ILLEGAL_OPERATION
            assert "messageIndexEnable=true" in (reply.remark or "") and await count(world) == 0

    run(test)


def test_a_key_behind_thousands_of_messages_in_its_slot_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen before: stored again, since the search ended after some links of the slot."""
    monkeypatch.setattr(key_files, "MAX_LINKS_OF_ONE", 5)

    async def test() -> None:
        async with serving(tmp_path, store=StoreLimits(index_slots=1)) as world:
            await keyed_batch(world, b"one")
            for number in range(20):
                await world.send("T", b"%d" % number, 0, first(f"other{number}"))
            assert stored_of(await keyed_batch(world, b"one")) == [0]
            monkeypatch.setattr(key_files, "MAX_LINKS", 10)
            refused = await keyed_batch(world, b"one")
            assert refused.code == ResponseCode.ILLEGAL_OPERATION
            assert "share a slot of the index" in (refused.remark or "")
            assert place(await world.send("T", b"0", 0, again("other0")))[3] == "21", "as documented"

    run(test)
