"""Pop: what goes out and under which handle, what is acknowledged, and what comes again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from dledger.broker.offset.offset_processor import MEMBERS_KNOWN_S
from dledger.broker.pop import pop_processor, revive_service
from dledger.formats.properties import FIRST_POP_TIME, POP_CK, decode_properties
from dledger.formats.state import POP_ORDERS, POPS
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.frames import encode_request
from tests.broker.harness import FakeConnection, World, decode, run, skip_s
from tests.broker.pop_calls import ack, batch_ack, change, notification, pop, popped, take
from tests.broker.test_delays import leading
from tests.client.fake_cluster import eventually

RETRY = "%RETRY%CG_T"
SOON = 30
"""Milliseconds."""


async def fill(world: World, count: int, queue: int = 0, topic: str = "T", properties: str = "") -> None:
    sent = [world.send(topic, b"%d" % number, queue, properties) for number in range(count)]
    assert all([(await one).code == 0 for one in sent])


def test_a_pop_takes_messages_for_its_group_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 3)
            reply = await pop(world, maxMsgNums=2)
            assert reply.code == 0 and reply.remark == "FOUND"
            time = reply.ext["popTime"]
            assert reply.ext == {
                "popTime": time,
                "invisibleTime": "60000",
                "reviveQid": "0",
                "restNum": "1",
                "startOffsetInfo": "0 0 0",
                "msgOffsetInfo": "0 0 0,1",
            }
            first = popped(reply)
            assert [one.body for one in first] == [b"0", b"1"]
            assert first[1].handle.encode() == f"0 {time} 60000 0 0 broker-a 0 1"
            (row,) = world.broker.store.state[POPS].rows.values()
            assert row.offsets == (0, 1) and str(row.time) == time
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 2
            assert [one.body for one in await take(world)] == [b"2"]
            empty = await pop(world)
            assert empty.code == ResponseCode.POLLING_TIMEOUT and empty.ext["restNum"] == "0"
            assert [one.body for one in await take(world, consumerGroup="OTHER")] == [b"0", b"1", b"2"]

    run(test)


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 3, properties="TAGS\x01a\x02")
            some = await take(world)
            assert (await ack(world, some[1])).code == 0
            assert (await ack(world, some[1])).code == 0  # again: nothing changes
            await skip_s(30)
            await asyncio.sleep(SOON / 1000)
            assert not await take(world), "half of its time is over"
            await skip_s(30)
            for body in (b"0", b"2"):
                (one,) = popped(await pop(world, maxMsgNums=1, pollTime=20_000))
                assert one.body == body and one.record.topic == "T" and one.topic == RETRY
                assert one.record.reconsume_times == 1 and one.handle.retry == "1"
                told = decode_properties(one.record.properties)
                assert told[FIRST_POP_TIME] == str(some[0].handle.time) and told["TAGS"] == "a"
                assert told[POP_CK] == one.handle.encode()
                assert (await ack(world, one)).code == 0
            assert (await ack(world, some[0])).code == 0  # its handle is old
            assert not world.broker.store.state[POPS].rows and world.features.pop.ledger.messages == 0
            stored = (await world.pull(RETRY, 0)).records
            assert [record.body for record in stored] == [b"0", b"2"]
            assert POP_CK not in decode_properties(stored[0].properties)

    run(test)


@pytest.mark.parametrize("mark", ["_", "+"])
def test_the_longest_names_pop_and_come_again(tmp_path: Path, mark: str) -> None:
    """Their retry topic has 255 characters, and its records are those with two bytes for that."""

    async def test() -> None:
        async with leading(tmp_path, retry_topic_v2=mark == "+") as world:
            topic, group = "T" * 127, "G" * 120
            await fill(world, 1, topic=topic)
            (first,) = await take(world, topic, consumerGroup=group, invisibleTime=SOON)
            reply = await pop(world, topic, consumerGroup=group, pollTime=20_000)
            (one,) = popped(reply, topic, group)
            assert one.topic == f"%RETRY%{group}{mark}{topic}" and len(one.topic) == 255
            assert one.body == first.body and one.record.reconsume_times == 1 and one.record.topic == topic
            assert (await ack(world, one, group)).code == 0
            assert not world.broker.store.state[POPS].rows
            (stored,) = (await world.pull(one.topic, 0)).records
            assert stored.topic == one.topic

    run(test)


@pytest.mark.parametrize("confirmed", [True, False])
def test_who_finds_nothing_to_do_says_so_only_as_leader(tmp_path: Path, confirmed: bool) -> None:
    """One that is cut off does not know what its successor gave out."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2)
            (one, *_) = await take(world)
            assert (await ack(world, one)).code == 0
            world.node.confirms = False
            late = ack(world, one)
            await asyncio.sleep(0)
            assert not late.done and len(world.node.asked) == 1
            world.node.asked.pop()(world.node.commit_index if confirmed else None)
            reply = await late
            assert reply.code == (ResponseCode.SUCCESS if confirmed else ResponseCode.SERVICE_NOT_AVAILABLE)

    run(test)


def test_a_message_that_fails_again_and_again_counts_its_times(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, retry_topic_v2=True) as world:
            await fill(world, 1)
            for times in range(4):
                (one,) = popped(await pop(world, invisibleTime=5, pollTime=20_000))
                assert one.record.reconsume_times == times
                assert one.topic == ("%RETRY%CG+T" if times else "T") and one.handle.retry == "02"[times > 0]
            first = (await world.pull("%RETRY%CG+T", 0)).records
            times = {decode_properties(record.properties)[FIRST_POP_TIME] for record in first}
            assert len(times) == 1  # that of the first pop

    run(test)


def test_invisible_time_is_changed_under_a_new_handle(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2)
            some = await take(world)
            reply = await change(world, some[0], 10_000)
            assert reply.code == 0 and reply.ext["invisibleTime"] == "10000"
            rows = world.broker.store.state[POPS].rows
            assert sorted(row.offsets for row in rows.values()) == [(0,), (1,)]
            late = await change(world, some[0], 10_000)
            assert late.code == ResponseCode.NO_MESSAGE and "is stale" in str(late.remark)
            new = some[0].handle._replace(time=int(reply.ext["popTime"]), invisible=10_000)
            some[0].handle = new
            reply = await change(world, some[0], 10_000)
            assert reply.code == 0 and len(world.broker.store.state[POPS].rows) == 2
            await skip_s(10)
            (one,) = popped(await pop(world, pollTime=20_000))
            assert one.body == b"0" and one.record.reconsume_times == 1
            assert (await ack(world, some[1])).code == 0

    run(test)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("behind", [" 123456", " -1"])
def test_the_handles_of_apache_s_proxy_have_a_ninth_part(tmp_path: Path, behind: str, in_order: bool) -> None:
    """It adds the position in the commit log, to the handles of changed invisible times as well."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2)
            first, second = await take(world, order=in_order)
            assert (await ack(world, first, behind=behind)).code == 0
            changed = await change(world, second, 50_000, behind=behind)
            assert changed.code == 0
            time = int(changed.ext["popTime"])
            second.handle = second.handle._replace(start=1 - in_order, time=time, invisible=50_000)
            assert (await ack(world, second, behind=behind)).code == 0
            assert not world.broker.store.state[POPS].rows
            assert not world.broker.store.state[POP_ORDERS].rows

    run(test)


def test_a_batch_of_acknowledgements(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 20)
            await fill(world, 3, queue=1)
            some = await take(world)
            assert len(some) == 23
            reply = await batch_ack(world, [one for one in some if one.body != b"1"])
            assert reply.code == 0
            left = [row.offsets for row in world.broker.store.state[POPS].rows.values()]
            assert left == [(1,), (1,)]
            assert (await batch_ack(world, some)).code == 0
            assert not world.broker.store.state[POPS].rows
            assert (await batch_ack(world, [])).code == ResponseCode.NO_MESSAGE
            assert (await batch_ack(world, some, r="7")).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await batch_ack(world, some, b="?")).code == ResponseCode.MESSAGE_ILLEGAL
            one = {"c": "", "t": "", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0}
            many = json.dumps({"acks": [one] * 257})
            reply = await world.call(RequestCode.BATCH_ACK_MESSAGE, None, many.encode())
            assert reply.code == ResponseCode.INVALID_PARAMETER

    run(test)


def test_a_pop_waits_for_messages_and_only_so_many_do(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, pop_polling_size=2) as world:
            await world.send("T", b"x")
            await take(world)
            first, second = pop(world, pollTime=60_000), pop(world, pollTime=60_000)
            full = await pop(world, pollTime=60_000)
            assert full.code == ResponseCode.POLLING_FULL
            await world.send("T", b"one")
            assert [one.body for one in popped(await first)] == [b"one"]
            assert not second.done
            await world.send("T", b"two", 3)
            assert [one.body for one in popped(await second)] == [b"two"]
            begun = asyncio.get_running_loop().time()
            assert (await pop(world, pollTime=20)).code == ResponseCode.POLLING_TIMEOUT
            assert asyncio.get_running_loop().time() - begun >= 0.02
            waits = pop(world, pollTime=60_000)
            assert not waits.done
            world.node.follow(None)
            assert (await waits).code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)


def test_a_filter_lets_a_pop_wait_for_what_it_wants(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2000, properties="TAGS\x01b\x02")
            await fill(world, 1, properties="TAGS\x01a\x02")
            (one,) = popped(await pop(world, exp="a"))
            assert one.handle.start <= 2000 and one.handle.offset == 2000
            assert (await ack(world, one)).code == 0
            waits = pop(world, exp="a", pollTime=60_000)
            await world.send("T", b"no", 0, "TAGS\x01b\x02")
            await asyncio.sleep(0.01)
            assert not waits.done
            await world.send("T", b"yes", 0, "TAGS\x01a\x02")
            assert [one.body for one in popped(await waits)] == [b"yes"]
            bad = await pop(world, expType="SQL93", exp="a")
            assert bad.code != 0

    run(test)


def test_a_group_has_only_so_much_in_flight(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, pop_in_flight_threshold=3) as world:
            await fill(world, 5)
            some = await take(world)
            assert len(some) == 3
            waits = pop(world, pollTime=60_000)
            await asyncio.sleep(0.01)
            assert not waits.done
            await ack(world, some[0])
            assert [one.body for one in popped(await waits)] == [b"3"]
        async with leading(tmp_path / "all", max_pop_in_flight=4) as world:
            await fill(world, 5)
            assert len(await take(world)) == 2 and not await take(world)
            assert len(await take(world, consumerGroup="B")) == 2 and not await take(world, consumerGroup="C")

    run(test)


def test_the_next_leader_revives_in_time_and_nothing_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 4)
            some = await take(world, invisibleTime=30_000)
            await ack(world, some[2])
            held = pop(world, pollTime=60_000, flag=0)
            world.node.follow(None)
            world.node.lead()
            assert (await ack(world, some[3])).code == 0
            await asyncio.sleep(SOON / 1000)
            assert not held.done
            await skip_s(30)
            come = [one.body for one in popped(await held)]  # it went on waiting at the next leader
            while len(come) < 2:
                come += [one.body for one in popped(await pop(world, pollTime=20_000))]
            assert come == [b"0", b"1"]
            assert not await take(world)

    run(test)


def test_a_clock_that_was_ahead_delays_by_the_invisible_time_at_most(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 1)
            await take(world)
            world.node.follow(None)
            # Its time was given by a clock that was a day ahead.
            ((key, row),) = world.broker.store.state[POPS].rows.items()
            ahead = msgspec.structs.replace(row, time=row.time + 86_400_000)
            del world.broker.store.state[POPS].rows[key]
            world.broker.store.state[POPS].rows[ahead.key] = ahead
            world.node.lead()
            await eventually(lambda: world.features.pop.ledger.ready)
            await skip_s(60)
            (one,) = popped(await pop(world, pollTime=20_000))
            assert one.record.reconsume_times == 1

    run(test)


def test_messages_are_popped_in_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 4)
            reply = await pop(world, order=True, maxMsgNums=2, attemptId="a1")
            assert reply.ext["reviveQid"] == "999" and reply.ext["orderCountInfo"] == "0 0 0"
            first = popped(reply)
            assert [one.body for one in first] == [b"0", b"1"]
            assert world.broker.store.state.consumer_offset("CG", "T", 0) in (None, 0)
            assert not await take(world, order=True)
            same = popped(await pop(world, order=True, maxMsgNums=2, attemptId="a1"))
            assert [one.body for one in same] == [b"0", b"1"]
            assert (await ack(world, same[1])).code == 0
            assert not await take(world, order=True)
            waits = pop(world, order=True, pollTime=60_000)
            assert (await ack(world, same[0])).code == 0
            assert [one.body for one in popped(await waits)] == [b"2", b"3"]
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 2
            assert (await batch_ack(world, popped(waits.reply))).code == 0
            assert not world.broker.store.state[POP_ORDERS].rows

    run(test)


def test_in_order_a_message_that_was_not_acknowledged_comes_first_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 3)
            some = await take(world, order=True, maxMsgNums=2, invisibleTime=60_000)
            assert (await ack(world, some[0])).code == 0
            reply = await change(world, some[1], SOON)
            assert reply.code == 0 and int(reply.ext["popTime"]) == some[1].handle.time
            reply = await pop(world, order=True, pollTime=20_000)
            assert [one.body for one in popped(reply)] == [b"1", b"2"]
            assert reply.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"
            assert (await ack(world, some[1])).code == 0  # an old handle: nothing changes
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 1

    run(test)


def test_in_order_a_handle_belongs_to_one_pop_also_within_a_millisecond(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2)
            some = [pop(world, order=True, maxMsgNums=1, attemptId="a1") for _ in range(3)]
            (old,), (second,), (new,) = [popped(await one) for one in some]
            assert (old.body, second.body, new.body) == (b"0", b"0", b"0")
            for one in (old, second):
                assert (await ack(world, one)).code == 0  # an old handle: nothing changes
            assert world.broker.store.state.consumer_offset("CG", "T", 0) in (None, 0)
            assert (await ack(world, new)).code == 0
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 1

    run(test)


def test_in_order_a_handle_from_before_a_reset_is_none_behind_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 2)
            fields = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true"}
            before = pop(world, order=True, maxMsgNums=1, attemptId="a1")
            world.features.offset.offsets.reset(
                "CG", "T", {0: 0}, (world.connection, _request(fields), lambda: None)
            )
            after = pop(world, order=True, maxMsgNums=1, attemptId="a2")
            (old,), (new,) = popped(await before), popped(await after)
            assert (old.body, new.body) == (b"0", b"0")
            assert (await ack(world, old)).code == 0
            assert world.broker.store.state.consumer_offset("CG", "T", 0) in (None, 0)
            assert (await ack(world, new)).code == 0
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 1

    run(test)


def _request(fields: dict[str, str]) -> Request:
    (request,) = decode(encode_request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 77, fields))
    return request


def test_in_order_a_reset_gives_the_queue_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 6)
            old = await take(world, order=True, invisibleTime=60_000)
            assert len(old) == 6
            waits = pop(world, order=True, pollTime=60_000, invisibleTime=60_000)
            reset = {
                "topic": "T",
                "group": "CG",
                "timestamp": 0,
                "isForce": "true",
                "queueId": 0,
                "offset": 2,
            }
            fields = {name: str(value) for name, value in reset.items()}
            assert (await world.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == 0
            again = popped(await waits)
            assert [one.body for one in again] == [b"2", b"3", b"4", b"5"]
            (row,) = world.broker.store.state[POP_ORDERS].rows.values()
            assert row.counts == (0, 0, 0, 0), "the log holds nothing of the pop before"
            assert (await batch_ack(world, old)).code == 0  # they were taken before: nothing changes
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 2
            assert (await batch_ack(world, again)).code == 0
            assert world.broker.store.state.consumer_offset("CG", "T", 0) == 6
            assert not world.broker.store.state[POP_ORDERS].rows

    run(test)


def test_queues_in_order_are_bounded_and_forgotten_when_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(pop_processor, "MAX_POP_ORDERS", 2)
        monkeypatch.setattr(revive_service, "MAX_POP_ORDERS", 2)
        async with leading(tmp_path) as world:
            for queue in range(3):
                await fill(world, 1, queue)
            assert len(await take(world, order=True, maxMsgNums=2)) == 2
            assert not await take(world, order=True)  # one more queue of a group is too many
            assert world.features.pop.ledger.messages == 2
            await skip_s(60)
            reply = await pop(world, order=True, pollTime=20_000, maxMsgNums=1)
            assert reply.code == 0  # a queue was forgotten, so that there is room
            assert len(world.broker.store.state[POP_ORDERS].rows) <= 2

    run(test)


def test_a_client_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", b"x")
            await take(world)
            gone = FakeConnection(serial=2)
            pop(world, pollTime=60_000, connection=gone)
            gone.closed = True
            await world.send("T", b"y")
            await asyncio.sleep(0.01)
            assert [one.body for one in await take(world)] == [b"y"]

    run(test)


def test_pops_take_nothing_while_too_many_answers_are_unsent(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 3)
            crowded = FakeConnection(crowded=True)
            at_once = await pop(world, connection=crowded, pollTime=0)
            assert at_once.code == ResponseCode.POLLING_TIMEOUT
            waits = pop(world, connection=crowded, pollTime=20_000)
            await skip_s(0.3)
            assert not waits.done and not world.broker.store.state[POPS].rows
            crowded.crowded = False
            await skip_s(0.3)
            assert len((await waits).records) == 3

    run(test)


def test_notification_peek_and_polling_info(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", b"x")
            assert (await notification(world)).ext == {"hasMsg": "true", "pollingFull": "false"}
            peek = {"consumerGroup": "CG", "topic": "T", "queueId": "-1", "maxMsgNums": "5"}
            reply = await world.call(RequestCode.PEEK_MESSAGE, peek)
            assert [record.body for record in reply.records] == [b"x"]
            assert len(await take(world)) == 1
            assert (await world.call(RequestCode.PEEK_MESSAGE, peek)).code == ResponseCode.PULL_NOT_FOUND
            assert (await notification(world, poll_ms=10)).ext["hasMsg"] == "false"
            waits, also = notification(world, poll_ms=60_000), pop(world, pollTime=60_000)
            asked = {"consumerGroup": "CG", "topic": "T", "queueId": "-1"}
            assert (await world.call(RequestCode.POLLING_INFO, asked)).ext == {"pollingNum": "2"}
            await world.send("T", b"y")
            assert (await waits).ext["hasMsg"] == "true" or also.done
            assert popped(await also)[0].body == b"y"

    run(test)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", b"x")
            for more, code in (
                ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
                ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
                ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
                ({"invisibleTime": 1 << 40}, ResponseCode.INVALID_PARAMETER),
                ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
                ({"queue": 77}, ResponseCode.INVALID_PARAMETER),
                ({"consumerGroup": "C" * 121}, ResponseCode.INVALID_PARAMETER),
            ):
                assert (await pop(world, **more)).code == code, more  # type: ignore[arg-type]
            (one,) = await take(world)
            for change_, code in (
                ({"handle": one.handle._replace(broker="a b")}, ResponseCode.MESSAGE_ILLEGAL),
                ({"handle": one.handle._replace(offset=99)}, ResponseCode.NO_MESSAGE),
                ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
            ):
                wrong = type(one)(**{**one.__dict__, **change_})
                assert (await ack(world, wrong)).code == code, change_

    run(test)


def test_pops_wait_until_all_voters_know_them_and_then_need_nobody_s_word(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            appender = world.node.appender
            assert appender is not None
            newest, appender.state_version = appender.state_version, 1
            await world.send("T", b"x")
            reply = await pop(world)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and "upgrade it first" in str(
                reply.remark
            )
            appender.state_version = newest
            (one,) = await take(world)
            assert (await ack(world, one)).code == 0
            appender.state_version = 1  # a voter that is down was not heard by this leader
            assert not world.broker.store.state[POPS].rows
            assert (await pop(world)).code == ResponseCode.POLLING_TIMEOUT
            await world.send("T", b"y")
            assert len(await take(world)) == 1

    run(test)


def test_answers_wait_for_the_commit(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", b"x")
            world.node.auto = False
            waits = pop(world)
            await asyncio.sleep(0.005)
            assert not waits.done
            world.node.commit()
            (one,) = popped(await waits)
            first, second = ack(world, one), ack(world, one)
            await asyncio.sleep(0.005)
            assert not first.done and not second.done  # what it found is not committed
            world.node.commit()
            assert (await first).code == (await second).code == 0

    run(test)


def test_a_reset_of_the_group_counts_for_pops(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await skip_s(MEMBERS_KNOWN_S)
            await fill(world, 2)
            assert len(await take(world)) == 2
            back = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"}
            assert (await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, back)).code == 0
            assert [one.body for one in await take(world)] == [b"1"]

    run(test)


def test_cold_messages_are_popped_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await fill(world, 10)
            world.node.log.cold_below = len(world.node.log.data)
            other = FakeConnection(serial=2)
            asked = [
                pop(world, maxMsgNums=3, pollTime=20_000, connection=one) for one in (other, world.connection)
            ]
            come = [one.body for waits in asked for one in popped(await waits)]
            come += [one.body for one in await take(world)]
            assert sorted(come) == [b"%d" % number for number in range(10)]

    run(test)
