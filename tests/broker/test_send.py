"""Sending: what is stored, what is answered, what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

from dledger.formats.entry import HEADER_SIZE, unpack_header
from dledger.formats.message_ids import decode_message_id
from dledger.formats.properties import decode_properties
from dledger.formats.record import COMPRESSED, check_body_crc
from dledger.messages import Code
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import SerializeType
from dledger.remoting.headers import SendMessageHeader
from tests.broker.harness import FakeConnection, World, run, send_header


def batch_body(*messages: tuple[bytes, bytes]) -> bytes:
    parts = []
    for body, properties in messages:
        size = 22 + len(body) + len(properties)
        parts.append(
            struct.pack(">iiiii", size, 0, 0, 7, len(body))
            + body
            + struct.pack(">h", len(properties))
            + properties
        )
    return b"".join(parts)


def test_a_message_is_stored_as_sent_and_answered_with_its_place(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        reply = await world.send(
            "T", b"hello", 2, "TAGS\x01A\x02UNIQ_KEY\x01ABC\x02", flag=9, sysFlag=COMPRESSED
        )
        assert reply.code == ResponseCode.SUCCESS
        assert reply.ext["queueId"] == "2" and reply.ext["queueOffset"] == "0"
        assert reply.ext["transactionId"] == "ABC"
        assert reply.ext["MSG_REGION"] == "DefaultRegion" and reply.ext["TRACE_ON"] == "true"
        [record] = (await world.pull("T", 2)).records
        assert (record.topic, record.body, record.queue_id, record.flag) == ("T", b"hello", 2, 9)
        assert record.sys_flag == COMPRESSED and check_body_crc(record)
        assert record.born_timestamp == 1_699_999_999_000
        assert record.born_host == world.connection.peer_host
        assert record.store_host == world.config.store_host
        assert record.store_timestamp == world.clock.value
        place = decode_message_id(reply.ext["msgId"])
        assert place == (world.config.store_host, record.physical_offset)
        properties = decode_properties(record.properties)
        assert properties["TAGS"] == "A" and properties["UNIQ_KEY"] == "ABC"
        assert properties["CLUSTER"] == "DefaultCluster"
        assert properties["MSG_REGION"] == "DefaultRegion" and properties["TRACE_ON"] == "true"

    run(test)


def test_version_one_headers_and_binary_headers_do_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        header = SendMessageHeader("PG", "T", "TBW102", 4, 1, 0, 1, 0, "KEYS\x01k\x02")
        for number, serialize in enumerate((SerializeType.JSON, SerializeType.ROCKETMQ)):
            reply = await world.call(RequestCode.SEND_MESSAGE, header, b"x", serialize=serialize)
            assert reply.code == 0 and reply.ext["queueOffset"] == str(number)
            assert reply.ext["msgId"] and reply.ext["MSG_REGION"] == "DefaultRegion"

    run(test)


def test_a_message_without_unique_key_gets_one(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        replies = [await world.send(properties=text) for text in ("", "XUNIQ_KEY\x01no\x02", "KEYS\x01a")]
        records = (await world.pull()).records
        keys = [decode_properties(record.properties)["UNIQ_KEY"] for record in records]
        assert len(set(keys)) == 3 and all(len(key) == 32 for key in keys)
        assert [reply.ext["transactionId"] for reply in replies] == keys
        assert decode_properties(records[2].properties)["KEYS"] == "a"

    run(test)


def test_a_message_that_was_here_before_does_not_grow(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(properties="UNIQ_KEY\x01A\x02POP_CK\x01old\x02")
        [first] = (await world.pull()).records
        await world.send(properties=first.properties)
        second = (await world.pull(offset=1)).records[0]
        assert "POP_CK" not in first.properties
        assert sorted(second.properties.split("\x02")) == sorted(first.properties.split("\x02"))

    run(test)


def test_answers_wait_for_the_commit_and_keep_their_order(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        asked = [world.send(queue=0) for _ in range(3)]
        assert not any(pending.done for pending in asked)
        world.node.commit()
        assert [pending.reply.ext["queueOffset"] for pending in asked] == ["0", "1", "2"]

    run(test)


def test_oneway_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        pending = world.send(flag_bits=2)
        world.node.commit()
        assert not pending.done
        assert len((await world.pull()).records) == 1

    run(test)


def test_lost_leadership_says_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        pending = world.send()
        world.node.follow("n1")
        assert pending.reply.code == ResponseCode.SYSTEM_ERROR
        assert (pending.reply.remark or "").startswith("outcome unknown")

    run(test)


def test_a_batch_is_one_whole_with_consecutive_offsets(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        body = batch_body((b"a", b"UNIQ_KEY\x01k1\x02"), (b"bb", b""), (b"", b"TAGS\x01t"))
        reply = await world.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", 0, ""), body)
        assert reply.code == 0 and reply.ext["queueOffset"] == "1"
        records = (await world.pull(offset=1)).records
        assert [record.body for record in records] == [b"a", b"bb", b""]
        assert [record.queue_offset for record in records] == [1, 2, 3]
        assert all(record.flag == 7 for record in records)
        ids = [decode_message_id(text).physical_offset for text in reply.ext["msgId"].split(",")]
        assert ids == [record.physical_offset for record in records]
        assert decode_properties(records[2].properties)["TAGS"] == "t"
        headers = [unpack_header(world.node.log.data, pos - HEADER_SIZE) for pos in ids]
        assert [header.batch_remaining for header in headers] == [2, 1, 0]

    run(test)


def test_queue_offsets_are_dense_whatever_the_mix_of_messages_and_batches(tmp_path: Path) -> None:
    """Sealed one after another before anything is applied, over several queues, and again by a new leader."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for leadership in range(2):
            world.node.auto = False
            asked = []
            for number in range(24):
                queue = number % 3
                if number % 4 == 1:
                    body = batch_body(*((b"%d" % part, b"") for part in range(1 + number % 5)))
                    asked.append(world.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T", queue, ""), body))
                else:
                    asked.append(world.send("T", b"x", queue))
            world.node.commit()
            world.node.auto = True
            assert all(pending.reply.code == 0 for pending in asked)
            for queue in range(3):
                records = (await world.pull("T", queue)).records
                while records and (more := (await world.pull("T", queue, len(records))).records):
                    records += more
                offsets = [record.queue_offset for record in records]
                assert offsets == list(range(len(offsets))), f"leadership {leadership}, queue {queue}"
            world.node.follow("n1")
            world.node.lead()

    run(test)


def test_a_batch_by_code_10_is_taken_as_a_batch(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        header = SendMessageHeader("PG", "T", "TBW102", 4, 0, 0, 1, 0, "", batch=True)
        reply = await world.call(RequestCode.SEND_MESSAGE, header, batch_body((b"a", b""), (b"b", b"")))
        assert reply.code == 0 and len((await world.pull()).records) == 2

    run(test)


def test_what_a_single_send_may_not_hold_a_batch_may_not_either(tmp_path: Path) -> None:
    """Found in review: a fast path did not look, and one such message would stop its queue's readers."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        end = len(world.node.log.entries)
        for properties in (
            b"UNIQ_KEY\x01abc\x02K\x01\xff\xfe\x02",
            b"UNIQ_KEY\x01abc\x02TRAN_MSG\x01true\x02",
            b"UNIQ_KEY\x01abc\x02DELAY\x013\x02",
        ):
            body = batch_body((b"a", properties))
            reply = await world.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", 0, ""), body)
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert len(world.node.log.entries) == end

    run(test)


def test_malformed_batches_are_refused_and_store_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        good = batch_body((b"abc", b""))
        for bad in (b"", good[:-1], good + b"x", b"\xff" * 40, good[:16] + b"\x7f" + good[17:]):
            reply = await world.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", 0, ""), bad)
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL, bad
        retry = await world.call(RequestCode.SEND_BATCH_MESSAGE, send_header("%RETRY%g", 0, ""), good)
        assert retry.code == ResponseCode.MESSAGE_ILLEGAL
        assert world.broker.store.queues.count == 0

    run(test)


def test_refusals_have_their_codes_and_store_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_message_size=100).open()
        entries = len(world.node.log.entries)
        cases = [
            (world.send("bad topic!"), ResponseCode.INVALID_PARAMETER),
            (world.send("x" * 128), ResponseCode.INVALID_PARAMETER),
            (world.send(".."), ResponseCode.INVALID_PARAMETER),
            (world.send("SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION),
            (world.send("TBW102"), ResponseCode.NO_PERMISSION),
            (world.send("TBW102"), ResponseCode.NO_PERMISSION),
            (world.send("rmq_sys_dledger"), ResponseCode.NO_PERMISSION),
            (world.send("T", defaultTopic="nothing"), ResponseCode.TOPIC_NOT_EXIST),
            (world.send("BenchmarkTest", queue=8), ResponseCode.INVALID_PARAMETER),
            (world.send("BenchmarkTest", b"x" * 101), ResponseCode.MESSAGE_ILLEGAL),
            (world.send("BenchmarkTest", properties="A\x01" + "x" * 32767), ResponseCode.MESSAGE_ILLEGAL),
            (
                world.send("BenchmarkTest", properties="TIMER_DELAY_SEC\x01999999\x02"),
                ResponseCode.MESSAGE_ILLEGAL,
            ),
            (world.send("BenchmarkTest", properties="TRAN_MSG\x01true\x02"), ResponseCode.MESSAGE_ILLEGAL),
            (world.send("BenchmarkTest", sysFlag=4), ResponseCode.MESSAGE_ILLEGAL),
            (world.send("BenchmarkTest", sysFlag=0x10), ResponseCode.INVALID_PARAMETER),
            (world.send("BenchmarkTest", flag=1 << 40), ResponseCode.SYSTEM_ERROR),
            (world.send("BenchmarkTest", bornTimestamp=1 << 64), ResponseCode.SYSTEM_ERROR),
        ]
        for number, (pending, code) in enumerate(cases):
            assert (await pending).code == code, number
            assert pending.reply.remark
        assert len(world.node.log.entries) == entries
        assert (await world.send("BenchmarkTest", properties="XDELAY\x013\x02")).code == 0

    run(test)


def test_too_much_pending_is_busy(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert world.node.appender is not None
        world.node.appender.refusal = Code.LEADER_PENDING_FULL
        assert (await world.send()).code == ResponseCode.SYSTEM_BUSY

    run(test)


def test_a_full_disk_is_not_available_and_stores_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        appender = world.node.appender
        assert appender is not None
        appender.room, appender.refusal = False, Code.DISK_FULL
        answer = await world.send()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "DISK_FULL" in (answer.remark or "")

    run(test)


def test_a_negative_queue_id_means_any(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        seen = {(await world.send(queue=-1)).ext["queueId"] for _ in range(30)}
        assert len(seen) == 4

    run(test)


def test_a_new_topic_is_sealed_in_front_of_the_message_that_makes_it(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        before = len(world.node.log.entries)
        first, second = world.send("New", defaultTopicQueueNums=3), world.send("New", queue=2)
        # Two messages behind the topic, when that was made, and the version of that operation.
        assert len(world.node.log.entries) == before + 5
        world.node.commit()
        assert first.reply.code == second.reply.code == 0
        topic = world.broker.store.state.topics["New"]
        assert (topic.read_queues, topic.write_queues, topic.perm) == (3, 3, 6)

    run(test)


def test_topics_are_not_made_where_that_is_off(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), auto_create_topic=False).open()
        assert (await world.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await world.send("%RETRY%g")).code == 0

    run(test)


def test_a_message_tried_too_often_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send("%RETRY%g", reconsumeTimes=16, properties="DELAY\x013\x02")
        await world.send("%RETRY%g", reconsumeTimes=17)
        await world.send("%RETRY%g", reconsumeTimes=4, maxReconsumeTimes=3)
        state = world.broker.store.state
        assert state.next_offset("SCHEDULE_TOPIC_XXXX", 2) == 1 and state.next_offset("%RETRY%g", 0) == 0
        assert state.next_offset("%DLQ%g", 0) == 2

    run(test)


def test_queue_offsets_go_on_after_a_change_of_leadership(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        world.node.auto = False
        lost = world.send()
        world.node.follow("n1")
        assert lost.reply.code == ResponseCode.SYSTEM_ERROR
        world.node.lead()
        kept = world.send()
        world.node.commit()
        assert kept.reply.ext["queueOffset"] == "1"

    run(test)


def test_a_vanished_client_costs_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        gone = FakeConnection(serial=2)
        world.send(connection=gone)
        gone.closed = True
        kept = world.send()
        world.node.commit()
        assert kept.reply.code == 0 and not gone.replies and len(world.broker.core.committed) == 0

    run(test)
