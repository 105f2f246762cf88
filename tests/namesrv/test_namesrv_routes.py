"""The route tables: registration, roles, fencing, expiry, questions. Time is an argument."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dledger.namesrv import routes as module
from dledger.namesrv.routes import PIECE, SETTLED_S, BrokerIdentity, Registered, Routes
from dledger.remoting.bodies import QueueData
from dledger.remoting.errors import RemotingError
from dledger.remoting.registration import DataVersion, Registration, TopicConfig
from dledger.runtime.cooperative import at_once

STRANGER = "192.0.2.9:10911"
A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def table(*names: str, queues: int = 4) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, queues, queues, 6) for name in names}


class World:
    """Routes with short ways to say things."""

    def __init__(self) -> None:
        self.routes = Routes()
        self.now = 0.0

    def register(
        self,
        address: str,
        id_: int,
        *topics: str,
        term: int = 1,
        counter: int = 0,
        name: str = "broker-a",
        cluster: str = "c",
        channel: int = 1,
        queues: int = 4,
        timeout_s: float = 120.0,
        whole: bool = False,
    ) -> Registered:
        registration = Registration(
            table(*(topics or ("T", "U")), queues=queues), DataVersion(term, counter, 0)
        )
        return at_once(
            self.routes.register(
                self.now,
                BrokerIdentity(cluster, name, id_, address),
                registration,
                channel=channel,
                ha_address=f"ha-{address}",
                timeout_s=timeout_s,
                whole_table=whole,
            )
        )

    def addresses(self, topic: str = "T") -> dict[int, str]:
        route = self.routes.route(topic)
        return route.brokerDatas[0].brokerAddrs if route is not None else {}


def test_a_registered_master_has_routes() -> None:
    world = World()
    world.register(A, 0, "T", "TBW102")
    route = world.routes.route("T")
    assert route is not None
    assert route.queueDatas == [QueueData("broker-a", 4, 4, 6)]
    assert route.brokerDatas[0].brokerAddrs == {0: A}
    assert world.routes.topics() == ["T", "TBW102"]
    assert world.routes.route("V") is None


def test_a_slave_publishes_no_topics_but_learns_its_master() -> None:
    world = World()
    assert world.register(B, 2) == Registered(None, None)
    assert world.routes.topics() == []
    world.register(A, 0)
    assert world.register(B, 2) == Registered(A, f"ha-{A}")
    assert world.addresses() == {0: A, 2: B}


def test_changed_queues_replace_and_never_double() -> None:
    world = World()
    world.register(A, 0, queues=4)
    world.register(A, 0, queues=8, counter=1)
    route = world.routes.route("T")
    assert route is not None
    assert [queue.readQueueNums for queue in route.queueDatas] == [8]


def test_a_topic_that_a_whole_table_lacks_is_there_no_more() -> None:
    """The topic is removed only from the broker group that sent the whole table. A table of Apache's brokers,
    which report only changes, removes nothing."""
    world = World()
    world.register(A, 0, "T", "U")
    world.register(B, 0, "T", "U", name="broker-b")
    world.register(A, 0, "T", counter=1)
    assert len(world.routes.topics_of_cluster("c")) >= 2
    assert {one.brokerName for one in world.routes.route("U").brokerDatas} == {"broker-a", "broker-b"}  # type: ignore[union-attr]
    world.register(A, 0, "T", counter=2, whole=True)
    assert [one.brokerName for one in world.routes.route("U").brokerDatas] == ["broker-b"]  # type: ignore[union-attr]
    world.register(B, 0, "T", counter=1, name="broker-b", whole=True)
    assert world.routes.route("U") is None and world.addresses("T")


def test_an_unchanged_version_changes_nothing() -> None:
    world = World()
    world.register(A, 0, queues=4)
    revision = world.routes.revision
    world.register(A, 0, queues=8)
    assert world.routes.revision == revision


def test_a_follower_that_becomes_master_gives_up_its_old_id() -> None:
    world = World()
    world.register(A, 0, term=1)
    world.register(B, 2)
    world.register(B, 0, term=2)
    assert world.addresses() == {0: B}
    world.register(A, 1)
    assert world.addresses() == {0: B, 1: A}


def test_a_master_that_becomes_follower_first_leaves_no_master() -> None:
    world = World()
    world.register(A, 0, term=1)
    world.register(A, 1, term=1)
    assert world.addresses() == {1: A}
    world.register(B, 0, term=2)
    assert world.addresses() == {0: B, 1: A}


def test_a_master_of_an_older_term_is_refused_and_changes_nothing() -> None:
    world = World()
    world.register(A, 0, term=1)
    world.register(B, 0, term=2)
    revision = world.routes.revision
    with pytest.raises(RemotingError, match=r"term\) 1, but 10.0.0.2:10911 is registered with 2") as caught:
        world.register(A, 0, term=1, counter=99)
    assert caught.value.code == 1
    assert world.addresses() == {0: B}
    assert world.routes.revision == revision


@pytest.mark.parametrize("end", ["closed", "withdrawn", "silent"])
def test_a_term_ends_with_the_registration_that_brought_it(end: str) -> None:
    """A stranger's took the group from its clients until the NameServer was started anew."""
    world = World()
    world.register(A, 0, term=4)
    world.register(STRANGER, 0, term=1 << 62, channel=7)
    with pytest.raises(RemotingError, match="register broker failed"):
        world.register(A, 0, term=4)
    if end == "closed":
        at_once(world.routes.channel_closed(7))
    elif end == "withdrawn":
        at_once(world.routes.unregister(BrokerIdentity("c", "broker-a", 0, STRANGER)))
    else:
        world.now += 121
        at_once(world.routes.expire(world.now))
    world.register(A, 0, term=4)
    assert world.addresses() == {0: A} and not world.routes.terms.keys() - {"broker-a"}


def test_members_of_the_group_outvote_a_strangers_term() -> None:
    world = World()
    for address, id_ in ((A, 0), (B, 2), (C, 3)):
        world.register(address, id_, term=4)
    world.register(STRANGER, 0, term=1 << 62, timeout_s=1e9)
    world.now = SETTLED_S - 1
    for address, id_ in ((B, 2), (C, 3)):
        world.register(address, id_, term=4)
    with pytest.raises(RemotingError):
        world.register(A, 0, term=4)
    world.now = SETTLED_S
    world.register(A, 0, term=4)
    assert world.addresses() == {0: A, 2: B, 3: C}


@pytest.mark.parametrize(("told", "id_"), [((B,), 2), ((C,), 3), ((B, C), 2)])
def test_a_deposed_master_is_not_let_back_by_members_that_know_the_new_one(
    told: tuple[str, ...], id_: int
) -> None:
    world = World()
    for address, number in ((A, 0), (B, 2), (C, 3)):
        world.register(address, number, term=4)
    leader = told[0]
    world.register(leader, 0, term=5)
    for address, number in ((B, 2), (C, 3)):
        if address in told[1:]:
            world.register(address, number, term=5)
    world.now = 2 * SETTLED_S
    world.routes.heartbeat(world.now, leader)
    with pytest.raises(RemotingError):
        world.register(A, 0, term=4)
    assert world.addresses()[0] == leader


def test_the_same_address_may_come_back_with_a_lower_term() -> None:
    world = World()
    world.register(A, 0, term=5)
    world.register(A, 0, term=4)
    assert world.addresses() == {0: A}
    with pytest.raises(RemotingError):
        world.register(B, 0, term=3)


def test_a_followers_term_fences_nobody() -> None:
    world = World()
    world.register(B, 2, term=9)
    world.register(A, 0, term=1)
    assert world.addresses() == {0: A, 2: B}


def test_brokers_without_terms_replace_each_other_as_in_rocketmq() -> None:
    world = World()
    world.register(A, 0, term=0)
    world.register(B, 0, term=0)
    assert world.addresses() == {0: B}


def test_late_events_of_a_displaced_master_do_not_touch_the_new_one() -> None:
    world = World()
    world.register(A, 0, term=1, channel=1)
    world.register(B, 0, term=2, channel=2)
    assert at_once(world.routes.channel_closed(1)) == []
    assert not at_once(world.routes.unregister(BrokerIdentity("c", "broker-a", 0, A)))
    world.now = 1000.0
    world.routes.heartbeat(world.now, B)
    assert at_once(world.routes.expire(world.now)) == []
    assert world.addresses() == {0: B}


def test_an_old_connection_that_closes_late_does_not_remove_a_newer_registration() -> None:
    world = World()
    world.register(A, 0, channel=1)
    world.register(A, 0, channel=2)
    assert at_once(world.routes.channel_closed(1)) == []
    assert world.addresses() == {0: A}
    assert [identity.address for identity in at_once(world.routes.channel_closed(2))] == [A]
    assert world.addresses() == {}


def test_topics_stay_while_any_node_is_there() -> None:
    world = World()
    world.register(A, 0, channel=1)
    world.register(B, 2, channel=2)
    at_once(world.routes.channel_closed(1))
    assert world.addresses() == {2: B}
    at_once(world.routes.channel_closed(2))
    assert world.routes.topics() == []
    assert world.routes.cluster_info().brokerAddrTable == {}


def test_a_silent_broker_expires_after_its_own_time_out() -> None:
    world = World()
    world.register(A, 0, timeout_s=10.0)
    world.register(B, 2)
    assert at_once(world.routes.expire(10.0)) == []
    assert [broker.identity.address for broker in at_once(world.routes.expire(10.1))] == [A]
    assert at_once(world.routes.expire(120.0)) == []
    assert [broker.identity.address for broker in at_once(world.routes.expire(120.1))] == [B]


def test_a_heartbeat_keeps_a_registration_and_may_change_its_time_out() -> None:
    world = World()
    world.register(A, 0, timeout_s=10.0)
    assert world.routes.heartbeat(9.0, A, 5.0)
    assert at_once(world.routes.expire(14.0)) == []
    assert len(at_once(world.routes.expire(14.1))) == 1
    assert not world.routes.heartbeat(15.0, A)


def test_who_is_heard_while_others_are_removed_stays() -> None:
    world = World()
    world.register(A, 0, *(f"T{number}" for number in range(2 * PIECE)), timeout_s=10.0)
    world.register(B, 0, "U", name="broker-b", timeout_s=10.0)
    removal = world.routes.expire(11.0)
    next(removal)
    assert world.routes.heartbeat(11.0, B, 10.0)
    assert [one.identity.address for one in at_once(removal)] == [A]
    assert world.addresses("U") == {0: B}


def test_unregistering_removes_the_node() -> None:
    world = World()
    world.register(A, 0)
    assert not at_once(world.routes.unregister(BrokerIdentity("c", "broker-a", 1, A)))
    assert at_once(world.routes.unregister(BrokerIdentity("c", "broker-a", 0, A)))
    assert world.routes.route("T") is None


def test_an_address_that_changes_its_group_leaves_the_old_one() -> None:
    world = World()
    world.register(A, 0, name="broker-a")
    world.register(A, 0, name="broker-b")
    assert list(world.routes.cluster_info().brokerAddrTable) == ["broker-b"]


def test_the_version_of_a_first_registration_with_one_topic_is_not_believed() -> None:
    world = World()
    identity = BrokerIdentity("c", "broker-a", 0, A)
    world.register(A, 0, "OnlyOne", counter=3)
    assert world.routes.data_version(identity) is None
    assert world.addresses("OnlyOne") == {0: A}
    world.register(A, 0, "OnlyOne", "Two", counter=3)
    assert world.routes.data_version(identity) == DataVersion(1, 3, 0)
    assert world.addresses("Two") == {0: A}


def test_several_groups_and_clusters() -> None:
    world = World()
    world.register(A, 0, "T", "X", name="broker-a", cluster="c1")
    world.register(B, 0, "T", "Y", name="broker-b", cluster="c2")
    route = world.routes.route("T", "broker-a:4")
    assert route is not None
    assert [data.brokerName for data in route.brokerDatas] == ["broker-a", "broker-b"]
    assert route.orderTopicConf == "broker-a:4"
    assert world.routes.cluster_info().clusterAddrTable == {"c1": ["broker-a"], "c2": ["broker-b"]}
    assert world.routes.topics_of_cluster("c1") == ["T", "X"]
    assert world.routes.system_topics() == (["c1", "c2", "broker-a", "broker-b"], A)
    assert world.routes.member_group("c1", "broker-a") is not None
    assert world.routes.member_group("c2", "broker-a") is None


def test_write_permission_is_wiped_and_given_back() -> None:
    world = World()
    world.register(A, 0)

    def perm() -> int:
        route = world.routes.route("T")
        assert route is not None
        return route.queueDatas[0].perm

    assert at_once(world.routes.wipe_write_perm("broker-a")) == 2
    assert perm() == 4
    assert at_once(world.routes.add_write_perm("broker-a")) == 2
    assert perm() == 6
    assert at_once(world.routes.wipe_write_perm("nobody")) == 0


def test_a_topic_is_deleted_in_one_cluster_or_everywhere() -> None:
    world = World()
    world.register(A, 0, name="broker-a", cluster="c1")
    world.register(B, 0, name="broker-b", cluster="c2")
    assert world.routes.delete_topic("T", "c1")
    assert world.addresses() == {0: B}
    assert world.routes.delete_topic("T")
    assert not world.routes.delete_topic("T")
    assert world.routes.topics() == ["U"]


def test_a_topic_is_entered_for_known_groups_only() -> None:
    world = World()
    world.register(A, 0)
    world.routes.register_topic("N", [QueueData("broker-a", 1, 1, 6), QueueData("nobody", 1, 1, 6)])
    assert world.addresses("N") == {0: A}


def test_filter_servers_are_in_the_route() -> None:
    world = World()
    identity = BrokerIdentity("c", "broker-a", 0, A)
    registration = Registration(table("T", "U"), DataVersion(), ["f:1"])
    at_once(world.routes.register(0.0, identity, registration, channel=1))
    route = world.routes.route("T")
    assert route is not None
    assert route.filterServerTable == {A: ["f:1"]}
    world.register(A, 0)  # says nothing of filter servers
    route = world.routes.route("T")
    assert route is not None
    assert route.filterServerTable == {A: ["f:1"]}


@pytest.mark.parametrize(
    "name, address, cluster, id_", [("", A, "c", 0), ("b", "", "c", 0), ("b", A, "", 0), ("b", A, "c", -1)]
)
def test_an_incomplete_identity_is_refused(name: str, address: str, cluster: str, id_: int) -> None:
    with pytest.raises(RemotingError, match="register broker failed"):
        World().register(address, id_, name=name, cluster=cluster)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BROKER_NAMES", 1)
    monkeypatch.setattr(module, "MAX_TOPICS", 3)
    world = World()
    world.register(A, 0, "T", "U")
    world.register(A, 0, "T", "U", "V", counter=1)
    with pytest.raises(RemotingError, match="the limit of 3 topics is reached"):
        world.register(A, 0, "T", "W", counter=2)
    with pytest.raises(RemotingError, match="1 broker groups are registered"):
        world.register(B, 0, name="broker-b")


class RoutesMachine(RuleBasedStateMachine):
    """Whatever happens, the tables fit together and a lower term never takes the master's place."""

    NODES = st.sampled_from([A, B, C])
    NAMES = st.sampled_from(["broker-a", "broker-b"])
    CHANNELS = st.integers(1, 4)

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(address=NODES, id_=st.integers(0, 3), name=NAMES, term=st.integers(0, 4), channel=CHANNELS)
    def register(self, address: str, id_: int, name: str, term: int, channel: int) -> None:
        before = self.world.routes.terms.get(name)
        topics = (f"only-{name}", "T") if id_ == 0 else ("T",)
        try:
            self.world.register(address, id_, *topics, name=name, term=term, channel=channel)
        except RemotingError:
            assert id_ == 0 and before is not None
            assert term < before.value and address != before.address

    @rule(channel=CHANNELS)
    def close(self, channel: int) -> None:
        at_once(self.world.routes.channel_closed(channel))

    @rule(address=NODES, id_=st.integers(0, 3), name=NAMES)
    def unregister(self, address: str, id_: int, name: str) -> None:
        at_once(self.world.routes.unregister(BrokerIdentity("c", name, id_, address)))

    @rule(step=st.floats(0, 200))
    def wait(self, step: float) -> None:
        self.world.now += step
        at_once(self.world.routes.expire(self.world.now))

    @rule(topic=st.sampled_from(["T", "only-broker-a"]))
    def delete(self, topic: str) -> None:
        self.world.routes.delete_topic(topic)

    @invariant()
    def tables_fit_together(self) -> None:
        routes = self.world.routes
        held = {
            (name, id_): address
            for name, group in routes._groups.items()
            for id_, address in group.addresses.items()
        }
        live = {(b.identity.name, b.identity.id): b.identity.address for b in routes.live()}
        assert held == live
        assert all(group.addresses for group in routes._groups.values())
        for topic in routes.topics():
            assert routes._topics[topic]
            for name in routes._topics[topic]:
                assert routes._groups[name].topics[topic] is routes._topics[topic][name]
        for name, group in routes._groups.items():
            for topic in group.topics:
                assert name in routes._topics[topic]
        # A term that nobody stands for any more fences nobody.
        assert all(claim.address in routes._live for claim in routes.terms.values())


RoutesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_any_history_keeps_the_tables_consistent = RoutesMachine.TestCase
