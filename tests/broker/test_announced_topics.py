"""Topics that sends create: the first acknowledgements wait until the NameServers know the topic, so that a
consumer that starts right behind one finds its route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.registration.registrar import ANSWER_LIMIT_S
from dledger.formats.properties import encode_properties
from dledger.formats.record import TRANSACTION_PREPARED
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_ONEWAY, FLAG_REDIRECT, Response
from dledger.remoting.headers import ConsumerSendMsgBackHeader
from dledger.remoting.registration import decode_registration
from tests.broker.harness import Pending, World, run, send_header, skip_s
from tests.broker.test_delays import leading
from tests.broker.test_send import batch_body
from tests.client.fake_cluster import eventually

NAMESRV = "ns:9876"


class Hearing:
    """Stands for the client of the registrar: a NameServer that answers while `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.knows: set[str] = set()
        self.asked = 0

    async def invoke(
        self, addr: str, code: int, header: Any, body: bytes = b"", timeout_s: float = 3.0
    ) -> Response:
        self.asked += 1
        await self.open.wait()
        if code == RequestCode.REGISTER_BROKER:
            self.knows = set(decode_registration(body).topics)
        return Response(ResponseCode.SUCCESS)


@asynccontextmanager
async def registered(root: Path) -> AsyncIterator[tuple[World, Hearing]]:
    """A leader that its NameServer knows, and which may create topics."""
    async with leading(root, namesrv_addr=(NAMESRV,)) as world:
        hearing = Hearing()
        registrar = world.features.registration.registrar
        registrar._client = hearing  # type: ignore[assignment]
        task = asyncio.create_task(registrar.keep_informed(), name="registrar")
        await eventually(lambda: registrar.registered[NAMESRV] and "TBW102" in hearing.knows)
        yield world, hearing
        hearing.open.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def batch(world: World) -> Pending:
    header = send_header("New", 0, "", batch=True)
    return world.ask(RequestCode.SEND_BATCH_MESSAGE, header, batch_body((b"a", b""), (b"b", b"")))


HALF = encode_properties({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "A" * 32})
WAYS: dict[str, Callable[[World], Pending]] = {
    "plain": lambda world: world.send("New", properties=encode_properties({"UNIQ_KEY": "A" * 32})),
    "batch": batch,
    "delayed": lambda world: world.send("New", properties=encode_properties({"DELAY": "3"})),
    "timed": lambda world: world.send("New", properties=encode_properties({"TIMER_DELAY_SEC": "30"})),
    "half": lambda world: world.send("New", properties=HALF, sysFlag=TRANSACTION_PREPARED),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_first_acknowledgement_waits_until_the_name_server_knows_the_topic(
    tmp_path: Path, way: str
) -> None:
    async def test() -> None:
        async with registered(tmp_path) as (world, hearing):
            hearing.open.clear()
            asked = hearing.asked
            sent = [WAYS[way](world), world.send("New", b"the next one")]
            await eventually(lambda: hearing.asked > asked)
            assert not any(one.done for one in sent), "acknowledged before the NameServer knows the topic"
            writer = world.broker.gate.writer
            assert writer is not None and "New" not in writer.slots, "plain sends would not wait"
            hearing.open.set()
            assert (await sent[0]).code == 0 and "New" in hearing.knows
            assert (await sent[1]).code == 0
            hearing.open.clear()
            assert (await world.send("New")).code == 0, "waits for a NameServer that knows the topic"

    run(test)


def test_a_oneway_send_lets_the_topic_be_announced_as_well(tmp_path: Path) -> None:
    async def test() -> None:
        async with registered(tmp_path) as (world, hearing):
            world.send("New", flag_bits=FLAG_REDIRECT | FLAG_ONEWAY)
            writer = world.broker.gate.writer
            assert writer is not None and "New" in writer.unannounced
            await eventually(lambda: "New" in hearing.knows and "New" in writer.slots)
            assert not writer.unannounced

    run(test)


def test_a_name_server_that_does_not_answer_holds_a_send_for_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        async with registered(tmp_path) as (world, hearing):
            hearing.open.clear()
            asked = hearing.asked
            sent = world.send("New")
            await eventually(lambda: hearing.asked > asked)
            assert not sent.done
            await skip_s(ANSWER_LIMIT_S)
            assert (await sent).code == 0
            assert (await world.send("New")).code == 0

    run(test)


def test_a_topic_that_is_deleted_before_it_is_announced_holds_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with registered(tmp_path) as (world, hearing):
            hearing.open.clear()
            first = world.send("New")
            deleted = world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"})
            hearing.open.set()
            assert (await first).code == 0 and (await deleted).code == 0
            assert (await world.send("New")).code == 0, "the next topic of that name"
            assert "New" in hearing.knows

    run(test)


@pytest.mark.parametrize("way", ["send-back", "send"])
def test_the_first_dead_letter_of_a_group_is_acknowledged_when_its_topic_is_known(
    tmp_path: Path, way: str
) -> None:
    async def test() -> None:
        async with registered(tmp_path) as (world, hearing):
            sent = await world.send("New")
            back = ConsumerSendMsgBackHeader(
                offset=int(sent.ext["msgId"][16:], 16), group="CG", delayLevel=-1, originTopic="New"
            )
            late = {"reconsumeTimes": 17, "maxReconsumeTimes": 16}
            assert (await world.pull("New")).code == 0
            await eventually(lambda: "%RETRY%CG" in hearing.knows)
            hearing.open.clear()
            if way == "send-back":
                answer = world.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            else:
                answer = world.send("%RETRY%CG", **late)
            table = world.features.topic.table
            await eventually(lambda: table.config("%DLQ%CG") is not None)
            assert not answer.done, answer.reply
            hearing.open.set()
            assert (await answer).code == 0 and "%DLQ%CG" in hearing.knows

    run(test)
