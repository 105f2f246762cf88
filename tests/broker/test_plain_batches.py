"""Batches by the compiled twin and by the Python one: the same answers, the same log, the same counts."""

from __future__ import annotations

import struct
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger._fast import FAST
from dledger.broker.commit_log import TopicSlot
from dledger.broker.intake import send_processor
from dledger.broker.stats.stats_item import Puts
from dledger.formats.entry import COVERED, Kind
from dledger.formats.state import TopicConfig
from dledger.log.appender import Run
from dledger.log.incoming import check_run
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import SerializeType
from dledger.remoting.frames import encode_request
from tests.broker.harness import run, send_header
from tests.broker.test_plain_sends import Side, told
from tests.broker.test_send import batch_body

pytestmark = pytest.mark.skipif(FAST is None, reason="the compiled twins are not built")

PLAIN = b"UNIQ_KEY\x01AC14000200000001\x02WAIT\x01true\x02"
properties = st.sampled_from(
    [
        *(PLAIN, PLAIN, PLAIN, PLAIN[:-1], b"TAGS\x01t\x02" + PLAIN, b"UNIQ_KEY\x01\x02"),
        *(b"", b"TAGS\x01t", b"NOT_UNIQ_KEY\x01a\x02", "UNIQ_KEY\x01\xe9\x02".encode(), b"UNIQ_KEY\x01\xff"),
        *(PLAIN + b"DELAY\x013\x02", PLAIN + b"CLUSTER\x01c\x02", PLAIN + b"POP_CK\x01c\x02"),
        *(PLAIN + b"__RESEND\x011\x02", PLAIN + b"TRAN_MSG\x01true\x02", PLAIN + b"P\x01" + b"p" * 32_690),
    ]
)
messages = st.lists(st.tuples(st.binary(max_size=20), properties), max_size=4)


def broken(draw: Any, body: bytes) -> bytes:
    how = draw(st.sampled_from(["whole", "whole", "whole", "byte", "cut", "more"]))
    if not body or how == "whole":
        return body
    at = draw(st.integers(0, len(body) - 1))
    if how == "cut":
        return body[:at]
    return (
        body + b"\0" * 3 if how == "more" else body[:at] + bytes([draw(st.integers(0, 255))]) + body[at + 1 :]
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_both_ways_tell_store_and_count_the_same(data: st.DataObject) -> None:
    draw: Any = data.draw
    frames = b""
    for number in range(draw(st.integers(1, 3))):
        topic = draw(st.sampled_from(["T", "T", "T", "New", "ReadOnly", "%RETRY%g"]))
        queue = draw(st.sampled_from([0, 0, 1, 99]))
        flags = {"sysFlag": draw(st.sampled_from([0, 0, 0, 1, 4, 0x10]))}
        code, batch = draw(st.sampled_from([(320, True), (320, False), (310, True)]))
        header = send_header(topic, queue, "", batch=batch, bornTimestamp=7, **flags)
        body = broken(draw, batch_body(*draw(messages)))
        kind = draw(st.sampled_from([SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ]))
        flag = draw(st.sampled_from([0, 0, 2]))
        frames += encode_request(code, number + 1, header, len(body), flag, kind) + body

    async def test() -> None:
        states = []
        for fast in (FAST, None):
            with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
                patch.setattr(send_processor, "FAST", fast)
                side = Side(root, bulk=False)
                await side.open()
                side.receive(frames)
                await side.settle()
                states.append(told(side.state()))
        assert states[0] == states[1]

    run(test)


def test_plain_batches_are_for_the_compiled_twin(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def none(*_: object) -> None:
        raise AssertionError("the Python twin was asked")

    async def test() -> None:
        side = Side(str(tmp_path), bulk=False)
        await side.open()
        monkeypatch.setattr(send_processor.SendProcessor, "_split", none)
        body = batch_body(*[(b"%d" % number, PLAIN) for number in range(5)])
        answer = await side.world.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", 2, ""), body)
        assert answer.code == 0 and len(answer.ext["msgId"].split(",")) == 5
        pulled = await side.world.pull(queue=2)
        assert [record.body for record in pulled.records] == [b"0", b"1", b"2", b"3", b"4"]

    run(test)


@pytest.mark.parametrize("covered", [0, COVERED])
def test_followers_believe_what_is_sealed(covered: int) -> None:
    assert FAST is not None
    slot = TopicSlot(TopicConfig("T", 4, 4, 6), [0, 5, 0, 0], Puts())
    body = batch_body((b"one", PLAIN), (b"", PLAIN[:-1]), (b"three", PLAIN))
    measured = FAST.measure_batch(body, 3, 1)
    assert measured is not None and measured[2] == b"AC14000200000001"
    sealed = Run(9, 4096, 7, 3, covered, 1234, [], [], 1 << 40, 1 << 40, 1 << 40, 1 << 22)
    ids = FAST.seal_batch(body, b"+", bytes(8), bytes(8), b"H", slot, 1, 0, 7, *measured[:2], 2, sealed)
    assert len(ids.split(b",")) == 3 and sealed.index == 12
    data = bytearray(b"".join(sealed.parts))
    # Two entries follow in the batch: their number is part of the last entry's header.
    assert struct.unpack_from(">I", data, sum(sealed.sizes[:2]) + 32)[0] == covered | Kind.MESSAGE << 24 | 2
    believed = Run(9, 4096, 7, 3, covered, 1234, [], [], 1 << 40, 1 << 40, 1 << 40, 1 << 22)
    FAST.seal_batch(body, b"+", bytes(8), bytes(8), b"H", slot, 1, 0, 7, *measured[:2], 0, believed)
    found = check_run(b"".join(believed.parts), 9, 11, 4096, 3, 3, 7)
    assert found.chains[-1] == believed.chain


def test_another_batch_than_was_measured_is_refused() -> None:
    assert FAST is not None
    slot = TopicSlot(TopicConfig("T", 4, 4, 6), [0], Puts())
    body = batch_body((b"one", PLAIN), (b"two", PLAIN))
    empty = Run(0, 0, 0, 1, 0, 0, [], [], 1, 1, 1, 1)
    for count, size in ((1, 100), (2, 10), (3, 1000), (0, 0)):
        with pytest.raises(ValueError, match=r"batch|host"):
            FAST.seal_batch(body, b"", bytes(8), bytes(8), b"H", slot, 0, 0, 7, count, size, 0, empty)
    assert empty.parts == []
