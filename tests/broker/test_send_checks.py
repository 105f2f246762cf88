"""What refuses sends holds on every way in: alone and in a batch, by the fast paths and by the slow one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest

from dledger import broker
from dledger._fast import FAST
from dledger.broker.config import BrokerConfig
from dledger.broker.feature import Feature
from dledger.broker.features import Features
from dledger.broker.intake import send_processor
from dledger.broker.intake.send_checks import Offered, SendCheck
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import SerializeType
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import SendMessageHeader
from tests.broker.harness import Pending, World, run, send_header
from tests.broker.test_send import batch_body

KEY = "UNIQ_KEY\x01AC14000200000001\x02"
TIMED = KEY + "TIMER_DELAY_SEC\x01600\x02"
HALF = KEY + "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
DELAYED = KEY + "DELAY\x013\x02"


@pytest.fixture(params=["compiled", "python", "none"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Which fast path a broker has: the compiled one, that of Python, or none at all."""
    if request.param == "compiled":
        if FAST is None:
            pytest.skip("the compiled twins are not built")
        return lambda world: None
    monkeypatch.setattr(send_processor, "FAST", None)

    def change(world: World) -> None:
        world.features.intake.plain_sends.fast = None
        if request.param == "none":
            monkeypatch.setattr(world, "taken_at_once", lambda connection, frame: False)

    return change


def batch(world: World, body: bytes = b"hello", properties: str = KEY) -> Pending:
    """A batch of two messages, of which the second is as it is said."""
    messages = batch_body((b"first", KEY.encode()), (body, properties.encode()))
    return world.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T", 0, "", batch=True), messages)


def v1(world: World, body: bytes = b"hello") -> Pending:
    """By the older code 10."""
    new = msgspec.structs.asdict(send_header("T", 0, KEY))
    header = SendMessageHeader(**{name: new.get(name) for name in SendMessageHeader.__struct_fields__})
    return world.ask(RequestCode.SEND_MESSAGE, header, body)


def binary(world: World) -> Pending:
    """With a header in RocketMQ's binary form."""
    header = send_header("T", 0, KEY)
    return world.ask(RequestCode.SEND_MESSAGE_V2, header, b"hello", serialize=SerializeType.ROCKETMQ)


WAYS: dict[str, Callable[[World], Pending]] = {
    "plain": lambda world: world.send(properties=KEY),
    "no key": lambda world: world.send(properties="TAGS\x01a"),
    "older code": v1,
    "binary": binary,
    "batch": batch,
    "batch of special messages": lambda world: batch(world, properties=KEY + "CLUSTER\x01c\x02"),
    "delayed": lambda world: world.send(properties=DELAYED),
    "timed": lambda world: world.send(properties=TIMED),
    "half": lambda world: world.send(properties=HALF),
    "retry": lambda world: world.send("%RETRY%CG", properties=KEY),
}
"""Each way in which a producer's message comes."""
FAST_WAYS = ("plain", "older code")
"""Those that a fast path takes."""


@dataclass
class Refusing(SendCheck):
    """Refuses all that it is asked about, or only messages, and keeps what it was told."""

    on: bool = True
    messages_only: bool = False
    asked: list[Offered] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    once: bool = False
    lets_retries: bool = False

    @property
    def active(self) -> bool:
        return self.on

    def check(self, send: Offered) -> None:
        self.asked.append(send)
        if not self.messages_only:
            raise RemotingError(ResponseCode.FLOW_CONTROL, "no")

    def check_message(self, send: Offered, body_size: int, properties: bytes) -> None:
        if self.messages_only and body_size == 5:
            raise RemotingError(ResponseCode.FLOW_CONTROL, "no")

    def stored(self, send: Offered, messages: int) -> None:
        self.counted.append(messages)


async def world_with(root: Path, check: SendCheck, fast: Callable[[World], None], **changes: Any) -> World:
    """A broker that leads, knows the topic T and asks this one check."""
    world = await World(str(root), **changes).open()
    fast(world)
    assert (await world.send("T", properties="TAGS\x01a")).code == 0
    world.features.intake.checks.ask([check])
    return world


@pytest.mark.parametrize("messages_only", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_check_in_the_list_holds_on_every_way(
    tmp_path: Path, fast: Callable[[World], None], way: str, messages_only: bool
) -> None:
    async def test() -> None:
        check = Refusing(messages_only=messages_only)
        world = await world_with(tmp_path, check, fast)
        end = world.node.log.last_index
        reply = await WAYS[way](world)
        assert (reply.code, reply.remark) == (ResponseCode.FLOW_CONTROL, "no")
        assert world.node.log.last_index == end and check.counted == []
        check.on, taken = False, world.taken
        assert (await WAYS[way](world)).code == 0
        has_fast_path = "taken_at_once" not in vars(world)
        assert world.taken - taken == (has_fast_path and way in FAST_WAYS), "which ways are fast"

    run(test)


@pytest.mark.parametrize("name", [one.name for one in fields(Features)])
def test_a_check_of_any_feature_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Also of one that is made after the intake."""
    feature = type(getattr(World("never opened").features, name))
    make = feature.__init__

    def with_check(self: Feature, *parts: Any) -> None:
        make(self, *parts)
        self.send_checks = (*self.send_checks, Refusing())

    monkeypatch.setattr(feature, "__init__", with_check)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert (await world.send()).code == ResponseCode.FLOW_CONTROL

    run(test)


def test_what_was_stored_is_counted(tmp_path: Path, fast: Callable[[World], None]) -> None:
    async def test() -> None:
        check = Refusing(messages_only=True)
        world = await world_with(tmp_path, check, fast)
        assert (await world.send(body=b"longer", properties=KEY)).code == 0
        assert (await batch(world, b"longer")).code == ResponseCode.FLOW_CONTROL  # its first message has five
        both = batch_body((b"longer", KEY.encode()), (b"longer", KEY.encode()))
        header = send_header("T", 0, "", batch=True, producerGroup="PG")
        assert (await world.ask(RequestCode.SEND_BATCH_MESSAGE, header, both)).code == 0
        assert check.counted == [1, 2] and check.asked[-1][:2] == ("T", "PG")

    run(test)


def test_a_check_says_what_it_lets_through(tmp_path: Path, fast: Callable[[World], None]) -> None:
    async def test() -> None:
        check = Refusing(lets_retries=True)
        world = await world_with(tmp_path, check, fast)
        assert (await world.send("%RETRY%CG", properties=KEY)).code == 0
        assert (await world.send("T", properties=KEY)).code == ResponseCode.FLOW_CONTROL
        offered = Offered("T", "PG", 453, 5)
        for once in (False, True):
            check.once, check.asked = once, []
            if once:
                world.features.intake.checks.check(offered, again=True)
            else:
                with pytest.raises(RemotingError):
                    world.features.intake.checks.check(offered, again=True)
            assert bool(check.asked) is not once

    run(test)


def test_a_popped_message_that_is_sent_on_has_no_earlier_life(
    tmp_path: Path, fast: Callable[[World], None]
) -> None:
    """Alone or in a batch: else it could be acknowledged by the handle of its earlier delivery."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        fast(world)
        earlier = "CLUSTER\x01old\x02MSG_REGION\x01old\x02TRACE_ON\x01old\x02POP_CK\x01old\x02"
        for text in (KEY + earlier, KEY + "POP_CK\x01old\x02", KEY + "CLUSTER\x01old\x02"):
            assert (await world.send(properties=text)).code == 0
            assert (await batch(world, properties=text)).code == 0
            records = (await world.pull(offset=world_end(world) - 3)).records
            alone, _, second = (record.properties.split("\x02") for record in records)
            assert sorted(alone) == sorted(second)
            assert not [name for name in second if name.endswith("\x01old")]

    run(test)


def world_end(world: World) -> int:
    """Next offset of queue 0 of topic T."""
    writer = world.broker.gate.writer
    assert writer is not None
    return writer.slots["T"].next[0]


def test_a_name_that_ends_like_the_key_is_no_key(tmp_path: Path, fast: Callable[[World], None]) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        fast(world)
        await batch(world, properties="NO_UNIQ_KEY\x01a\x02")
        record = (await world.pull(offset=1)).records[0]
        assert "\x02UNIQ_KEY\x01" in record.properties

    run(test)


# -- settings ---------------------------------------------------------------------------------------------

REFUSES: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "auto_create_topic": ({"auto_create_topic": False}, ("new topic", "new topic in a batch")),
    "max_topics": ({"max_topics": 0}, ("new topic", "new topic in a batch")),
    "max_topic_table_bytes": ({"max_topic_table_bytes": 1}, ("new topic", "new topic in a batch")),
    "max_message_size": ({"max_message_size": 9}, ("large", "large in a batch")),
    "topic_send_rates": ({"topic_send_rates": {"T": 1}}, ("plain", "batch", "timed", "half")),
    "group_send_rates": ({"group_send_rates": {"PG": 1}}, ("plain", "batch", "timed", "half")),
    "reject_transactions": ({"reject_transactions": True}, ("half",)),
    "max_open_transactions": ({"max_open_transactions": 1}, ("second half",)),
    "timer_wheel_enable": ({"timer_wheel_enable": False}, ("timed",)),
    "timer_max_delay_s": ({"timer_max_delay_s": 60}, ("timed",)),
    "max_timer_messages": ({"max_timer_messages": 0}, ("timed",)),
}
"""Each setting by which a broker refuses sends: with which value, and what it refuses then."""
HARMLESS: Mapping[str, str] = {
    "broker_name": "is part of a handle",
    "cluster_name": "is added to the properties",
    "duplicate_check_topics": "has a copy looked for; a send is not refused for it",
    "delay_levels": "says how many levels there are; a higher one counts as the last",
    "fast_failure": "by the state of the log: tests/broker/test_flow_control.py",
    "page_cache_busy_s": "the same",
    "queue_wait_s": "how long a send waits for a search",
    "recall_enable": "whether the answer has a handle",
    "region_id": "is added to the properties",
    "server": "of its limits the size of a frame: a longer one closes the connection",
    "store_host": "is part of each message",
    "timer_precision_ms": "rounds times",
    "topic_pull_rates": "limits reading",
    "group_pull_rates": "limits reading",
    "trace_on": "is added to the properties",
    "transaction_timeout_ms": "when a producer is asked",
    "transaction_check_interval_ms": "the same",
}
"""Settings that are read, and refuse nothing."""


def sent(world: World, what: str) -> Iterator[Pending]:
    """The sends of which the last one is refused."""
    large = b"x" * 10
    new = send_header("New", 0, "", batch=True)
    if what == "new topic":
        yield world.send("New", properties=KEY)
    elif what == "new topic in a batch":
        yield world.ask(RequestCode.SEND_BATCH_MESSAGE, new, batch_body((b"a", KEY.encode())))
    elif what == "large":
        yield world.send(body=large, properties=KEY)
    elif what == "large in a batch":
        yield batch(world, large)
    elif what == "second half":
        yield world.send(properties=HALF)
        yield world.send(properties=HALF)
    else:
        yield WAYS[what](world)
        yield WAYS[what](world)


@pytest.mark.parametrize(("name", "what"), [(name, one) for name in REFUSES for one in REFUSES[name][1]])
def test_a_setting_refuses_by_every_way(
    tmp_path: Path, fast: Callable[[World], None], name: str, what: str
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **REFUSES[name][0]).open()
        fast(world)
        codes = [(await pending).code for pending in sent(world, what)]
        assert codes[-1] != 0, f"{name} refuses nothing here: {codes}"

    run(test)


def subclasses(of: type) -> set[type]:
    """All subclasses that the product has."""
    found = {one for direct in of.__subclasses__() for one in (direct, *subclasses(direct))}
    return {one for one in found if one.__module__.startswith("dledger.")}


def test_every_check_is_listed_by_a_feature(tmp_path: Path) -> None:
    """A check that no feature lists is never asked."""
    for module in walk_packages(broker.__path__, "dledger.broker."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    features = World(str(tmp_path)).features
    listed = {type(check) for feature in features for check in feature.send_checks}
    assert len(listed) >= 2
    for check in subclasses(SendCheck) - listed:
        places = check.__module__.rpartition(".")[0].replace(".", "/")
        raise AssertionError(
            f"{check.__name__} refuses nothing: put it into `send_checks` in {places}/feature.py"
        )


def test_every_setting_that_sends_depend_on_is_in_one_of_the_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read while a broker's parts for sends are made, and while something is sent."""
    read: set[str] = set()
    plain = BrokerConfig.__getattribute__
    features = World(str(tmp_path / "first")).features
    checks = [check for feature in features for check in feature.send_checks]
    places = (
        str(Path(send_processor.__file__).parent),
        *(str(sys.modules[type(check).__module__].__file__) for check in checks),
    )

    def spy(config: BrokerConfig, name: str) -> Any:
        caller = sys._getframe(1).f_code
        if sending or caller.co_filename.startswith(places):
            read.add(name)
        return plain(config, name)

    sending = False
    monkeypatch.setattr(BrokerConfig, "__getattribute__", spy)

    async def test() -> None:
        nonlocal sending
        world = await World(str(tmp_path)).open()
        sending = True
        pending = [way(world) for way in WAYS.values()]
        pending.append(world.send("New", properties=KEY))
        sending = False
        for one in pending:
            await one

    run(test)
    known = {*dir(BrokerConfig), *(one.name for one in fields(BrokerConfig))}
    assert {*REFUSES, *HARMLESS} <= known
    unknown = {name for name in read if not name.startswith("_")} - {*REFUSES, *HARMLESS}
    assert not unknown, (
        f"sends depend on {sorted(unknown)}: add each to REFUSES in tests/broker/{Path(__file__).name} with a"
        " value by which a send is refused, or to HARMLESS with the reason why it refuses nothing"
    )
    assert {"max_message_size", "topic_send_rates", "reject_transactions"} <= read, "the spy sees nothing"
