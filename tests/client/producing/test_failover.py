"""The leader goes away: messages wait, follow, keep their order; consumers go on at the new leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientError,
    ClientOptions,
    FromWhere,
    Message,
    NoBroker,
    OutcomeUnknown,
    Overflow,
    ProducerOptions,
    ReceivedMessage,
    SendResult,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import Overloaded
from dledger.remoting.headers import QueueHeader
from dledger.remoting.limits import ClientLimits
from tests.broker.harness import skip_s
from tests.client.fake_cluster import (
    GROUP,
    FakeCluster,
    eventually,
    send_limit,
    skip_now,
    waits_for_a_leader,
)

NEVER_S = 600.0
"""A time-out that does not end within the test: what still ends was not waiting for it."""
Scenario = Callable[[FakeCluster, AsyncProducer], Awaitable[None]]


def run(
    scenario: Scenario, options: ProducerOptions | None = None, client: ClientOptions | None = None
) -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", fake.namesrv, options, client) as producer,
            asyncio.timeout(60),
        ):
            await scenario(fake, producer)

    asyncio.run(main())


async def send_many(producer: AsyncProducer, count: int, **how: str) -> list[SendResult | BaseException]:
    sends = [producer.send(Message("orders", b"%d" % number), **how) for number in range(count)]  # type: ignore[arg-type]
    return await asyncio.gather(*sends, return_exceptions=True)


def asked(fake: FakeCluster) -> list[int]:
    """How many sends each broker was asked for so far."""
    return [broker.requests.count(RequestCode.SEND_MESSAGE_V2) for broker in fake.brokers]


def test_a_follower_s_hint_is_followed_at_once() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"before"))
        fake.lead(2, registered=False)  # the NameServer still calls broker 0 the leader
        before = fake.route_requests
        await producer.send(Message("orders", b"after"))
        assert fake.bodies("orders") == [b"before", b"after"]
        assert "__RESEND" not in fake.stored("orders")[1].properties
        assert fake.route_requests == before

    run(scenario, ProducerOptions(suspicion_s=NEVER_S))


def test_a_killed_leader_shows_only_as_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out has to end before the new leader is found, and no long pause lies between two questions."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay: float, result: object = None) -> object:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("find the leader"):
            pauses.append(delay)
        return await sleep(delay, result)

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"before"))
        await fake.kill(0)
        monkeypatch.setattr(asyncio, "sleep", noted)
        sending = asyncio.ensure_future(producer.send(Message("orders", b"after")))
        await eventually(lambda: min(asked(fake)[1:]) >= 3)  # nobody is elected yet
        assert not sending.done()
        fake.lead(1, registered=False)
        refused = asked(fake)[1]
        await sending
        assert asked(fake)[1] == refused + 1, "the first question to the new leader was the last"
        assert max(pauses) < 0.05
        assert fake.bodies("orders") == [b"before", b"after"]

    options = ProducerOptions(timeout_s=NEVER_S, attempt_timeout_s=NEVER_S, suspicion_s=NEVER_S)
    run(scenario, options, ClientOptions(probe_timeout_s=NEVER_S))


def test_the_new_leader_is_found_without_hints_and_without_the_nameserver() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        for broker in fake.brokers:
            broker.hints = False
        await producer.send(Message("orders", b"before"))
        fake.lead(2, registered=False)
        await producer.send(Message("orders", b"after"))
        assert fake.bodies("orders") == [b"before", b"after"]

    run(scenario)


def test_the_nameserver_s_news_are_enough() -> None:
    """Nobody but the NameServer knows the new leader's address: it joined after the last route."""

    async def main() -> None:
        fake = FakeCluster(topics={"orders": 1})
        late = fake.brokers.pop()
        async with fake, AsyncProducer("producers", fake.namesrv) as producer, asyncio.timeout(60):
            await producer.send(Message("orders", b"before"))
            fake.brokers.append(late)
            await late.start()
            await fake.kill(0)
            fake.lead(2)
            fake.brokers[1].hints = False
            await producer.send(Message("orders", b"after"))
            assert fake.bodies("orders") == [b"before", b"after"]

    asyncio.run(main())


def test_messages_in_flight_at_a_kill_are_sent_again_and_marked() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        fake.brokers[0].silent = True
        sends = asyncio.gather(*(producer.send(Message("orders", b"%d" % number)) for number in range(100)))
        await eventually(lambda: producer._pending_count == 100)
        await fake.kill(0)
        fake.lead(1)
        await sends
        stored = fake.stored("orders")[1:]
        assert [item.body for item in stored] == [b"%d" % number for number in range(100)]
        assert {item.properties.get("__RESEND") for item in stored} == {"1"}

    run(scenario)


def test_messages_sent_while_nobody_leads_arrive_in_their_order() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        await fake.kill(0)
        sending = asyncio.ensure_future(send_many(producer, 200))
        await eventually(lambda: producer._pending_count == 200)
        fake.lead(2)
        results = await sending
        assert all(isinstance(result, SendResult) for result in results)
        stored = fake.stored("orders")[1:]
        assert [item.body for item in stored] == [b"%d" % number for number in range(200)]
        assert {item.properties.get("__RESEND") for item in stored[1:]} <= {None, "1"}

    run(scenario)


def test_more_than_a_connection_takes_at_once_waits_for_it_in_its_order() -> None:
    """All that waited for a leader went out in one turn, and what was too much failed with Overflow."""

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        await fake.kill(0)
        sending = asyncio.ensure_future(send_many(producer, 300))
        await eventually(lambda: producer._pending_count == 300)
        fake.lead(2)
        results = await sending
        assert all(isinstance(result, SendResult) for result in results)
        assert fake.bodies("orders")[1:] == [b"%d" % number for number in range(300)]
        assert {item.properties.get("__RESEND") for item in fake.stored("orders")[2:]} == {None}
        results = await send_many(producer, 300)  # and without a failover
        assert all(isinstance(result, SendResult) for result in results)

    limits = ClientLimits(max_outbound=10_000, connect_timeout_s=20.0)
    run(scenario, ProducerOptions(busy_pause_s=0.001), ClientOptions(limits=limits))


def test_a_connection_that_takes_no_more_is_no_sign_of_a_lost_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        core, lost = producer._core, []
        monkeypatch.setattr(core, "leader_failed", lambda *told: lost.append(told))
        for _ in range(50):
            producer.send_nowait(Message("orders", b"x" * 1000), lambda _: None)
        await producer.send_oneway(Message("orders", b"x" * 1000))
        group, header = core.group(GROUP), QueueHeader("orders", 0)
        answer = await core.invoke_leader(group, "orders", RequestCode.GET_MAX_OFFSET, header, bytes(1000))
        assert answer.code == ResponseCode.SUCCESS and lost == []

    run(scenario, client=ClientOptions(limits=ClientLimits(max_outbound=10_000, connect_timeout_s=20.0)))


def test_what_a_connection_does_not_take_in_time_is_told_as_too_much() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        with (
            send_limit(producer, 0.2),
            pytest.raises(Overflow, match=r"did not take the message within 0\.2 s; it is not stored"),
        ):
            await producer.send(Message("orders", bytes(4_990)))  # no room for its header
        with (
            send_limit(producer, NEVER_S),  # it fails without waiting for that
            pytest.raises(Overflow, match="the body has 10000 bytes, and max_outbound is 5000"),
        ):
            await producer.send(Message("orders", bytes(10_000)))
        await producer.send(Message("orders", b"second"))
        assert fake.bodies("orders") == [b"first", b"second"]

    limits = ClientLimits(max_outbound=5_000, connect_timeout_s=20.0)
    options = ProducerOptions(busy_pause_s=0.01, compress_over=0)
    run(scenario, options, ClientOptions(limits=limits))


def test_a_message_that_is_stored_is_not_parked_for_an_attempt_that_failed() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        kernel, sends = producer._kernel, []
        submit = kernel.submit
        kernel.submit = lambda send: (sends.append(send), submit(send))[1]  # type: ignore[method-assign]
        await producer.send(Message("orders", b"second"))
        (send,) = sends
        kernel._failed(send, Overloaded("the question of a search, answered by an earlier attempt"))
        assert not send.target.lane.parked and not send.target.lane.in_flight
        await producer.send(Message("orders", b"third"))

    run(scenario)


def test_ordered_messages_keep_their_order_when_the_leader_moves_again_and_again() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        async def wander() -> None:
            for turn in range(20):
                await asyncio.sleep(0.004)
                fake.lead((turn + 1) % 3, registered=turn % 2 == 0)

        wandering = asyncio.gather(wander())
        results = await send_many(producer, 300, ordering_key="customer-7")
        await wandering
        assert all(isinstance(result, SendResult) for result in results)
        assert fake.bodies("orders") == [b"%d" % number for number in range(300)]

    run(scenario)


def test_without_any_leader_the_deadline_ends_the_wait() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        fake.lead(-1)
        with send_limit(producer, 30.0):
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            await eventually(lambda: min(asked(fake)) >= 3 and waits_for_a_leader(producer))
            skip_now(30.0)
            with pytest.raises(NoBroker, match=r"within 30 s; it is not stored"):
                await sending
        fake.lead(1)
        await producer.send(Message("orders", b"again"))
        assert fake.bodies("orders") == [b"first", b"again"]

    run(scenario)


def test_a_message_that_may_be_stored_says_so_at_its_deadline() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        fake.brokers[0].silent = True
        with send_limit(producer, 0.1):
            send = asyncio.gather(producer.send(Message("orders", b"x")), return_exceptions=True)
            await eventually(lambda: RequestCode.SEND_MESSAGE_V2 in fake.brokers[0].requests[1:])
            await fake.kill(0)
            (result,) = await send
        assert isinstance(result, OutcomeUnknown)

    run(scenario)


def test_a_silent_leader_is_left_when_the_nameserver_knows_another() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        fake.brokers[0].silent = True
        fake.lead(1)
        await producer.send(Message("orders", b"x"))
        assert fake.stored("orders")[1].properties["__RESEND"] == "1"

    # The attempt's time-out does not end: it is the suspicion that leaves the silent leader.
    run(scenario, ProducerOptions(suspicion_s=0.05, attempt_timeout_s=NEVER_S, timeout_s=NEVER_S))


def test_all_brokers_hear_of_us_again_after_a_leader_change() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"x"))
        await eventually(lambda: all(broker.heartbeats for broker in fake.brokers))
        counts = [len(broker.heartbeats) for broker in fake.brokers]
        fake.lead(1)
        await producer.send(Message("orders", b"y"))
        await eventually(
            lambda: all(len(b.heartbeats) > c for b, c in zip(fake.brokers, counts, strict=True))
        )

    run(scenario)


def test_create_topic_finds_the_leader() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        fake.lead(2, registered=False)
        await producer.create_topic("fresh", queues=2)
        assert fake.topics["fresh"] == 2

    run(scenario)


def test_a_push_consumer_goes_on_at_the_new_leader() -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with FakeCluster(topics={"orders": 2}) as fake:
            consumer = AsyncPushConsumer("group", fake.namesrv, handle, from_where=FromWhere.FIRST)
            consumer.subscribe("orders")
            async with consumer, AsyncProducer("producers", fake.namesrv) as producer, asyncio.timeout(60):
                await producer.send(Message("orders", b"1"))
                await eventually(lambda: got == [b"1"])
                await fake.kill(0)
                fake.lead(1)
                await producer.send(Message("orders", b"2"))
                await eventually(lambda: got == [b"1", b"2"])
            assert sum(fake.offsets.values()) == 2

    asyncio.run(main())


def test_a_pull_held_by_an_old_leader_is_left() -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncPullConsumer("group", fake.namesrv) as consumer,
            AsyncProducer("producers", fake.namesrv) as producer,
            asyncio.timeout(60),
        ):
            await consumer.assign(await consumer.queues("orders"))
            await eventually(lambda: fake.brokers[0].held)
            fake.lead(1)  # broker 0 lives on and holds the pull; nothing will ever arrive there
            await producer.send(Message("orders", b"x"))
            consumer._core.refresh_soon("orders")
            assert [message.body for message in await consumer.poll(30.0)] == [b"x"]

    asyncio.run(main())


def test_a_new_leader_s_notice_ends_a_pull_that_waits_at_the_old_one() -> None:
    async def main() -> None:
        got: list[bytes] = []
        async with FakeCluster(topics={"orders": 1}) as fake:
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, lambda message: got.append(message.body), from_where=FromWhere.FIRST
            )
            consumer.subscribe("orders")
            async with consumer, AsyncProducer("producers", fake.namesrv) as producer, asyncio.timeout(60):
                await producer.send(Message("orders", b"1"))
                await eventually(lambda: got == [b"1"] and fake.brokers[0].held)
                fake.brokers[0].silent = True  # as a process that is stopped: nobody hears that it is gone
                fake.lead(1, registered=False)
                fake.brokers[1].tell_leader("group", "127.0.0.1:1")  # of no group that the client knows
                core = producer._core
                core.leader_is(core.group(GROUP), fake.brokers[1].address)  # the producer knows already
                await producer.send(Message("orders", b"2"))
                await asyncio.sleep(0.1)
                assert got == [b"1"]
                fake.brokers[1].tell_leader("group", fake.brokers[1].address)
                await eventually(lambda: got == [b"1", b"2"])

    asyncio.run(main())


def test_what_waited_long_at_the_old_leader_has_all_the_time_to_find_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dledger.client.core.POLL_GRACE_S", 0.01)

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"x"))
        fake.script = lambda broker, connection, request: broker.number == 0  # takes all, answers nothing
        group = producer._core.group(GROUP)
        header = QueueHeader("orders", 0)
        asked = asyncio.ensure_future(
            producer._core.invoke_leader(group, "orders", RequestCode.GET_MAX_OFFSET, header, poll_s=NEVER_S)
        )
        await eventually(lambda: RequestCode.GET_MAX_OFFSET in fake.brokers[0].requests)
        await skip_s(30.0)  # longer than a search may take
        fake.lead(1, registered=False)
        producer._core.leader_is(group, fake.brokers[1].address)
        assert (await asked).code == 0

    run(scenario, client=ClientOptions(failover_timeout_s=20.0))


def test_errors_of_the_client_name_what_happened_last() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"first"))
        for number in range(3):
            await fake.kill(number)
        lane = producer._kernel.lane(producer._core.group(GROUP))
        with send_limit(producer, 30.0):
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            await eventually(lambda: all(send.attempt > 3 for send in lane.parked.values()))
            await eventually(lambda: waits_for_a_leader(producer))
            skip_now(30.0)
            with pytest.raises(ClientError, match="cannot connect"):
                await sending

    run(scenario)


def test_a_hint_leads_to_a_broker_that_no_route_names() -> None:
    async def main() -> None:
        fake = FakeCluster(topics={"orders": 1})
        async with fake, AsyncProducer("producers", fake.namesrv) as producer, asyncio.timeout(60):
            fake.brokers[2].alive = False  # runs, but the NameServer does not list it
            await producer.send(Message("orders", b"before"))
            await fake.kill(0)
            fake.lead(2, registered=False)
            await producer.send(Message("orders", b"after"))
            assert fake.bodies("orders") == [b"before", b"after"]
            fake.brokers[2].alive = True

    asyncio.run(main())
