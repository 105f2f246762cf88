"""Users and policies (ACL 2.0) with Apache's mqadmin 5, and unmodified clients that sign as such users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger import ClientOptions, Credentials, Message, Producer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from tests.interop.conftest import ClientKind, Driver, java_client
from tests.interop.test_accounts import READY_S, of, told
from tests.interop.test_mqadmin import printed

pytestmark = pytest.mark.interop

CLASSES = "org.apache.rocketmq.auth.authentication"
ROOT, SECRET = "root", "root-secret-1"


NODES = ("n0", "n1", "n2")


def settings(**more: str) -> dict[str, str]:
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": f'{{"username":"{ROOT}","password":"{SECRET}"}}',
        # As RocketMQ's documentation has them:
        "authenticationProvider": f"{CLASSES}.provider.DefaultAuthenticationProvider",
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
        **more,
    }


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalCluster]:
    group = LocalCluster.create(
        tmp_path / "group", ClusterSpec(base_port=find_base_port(start=23700), broker=settings())
    )
    group.start()
    group.wait_registered()  # commands for a cluster go to whom the NameServer lists
    conf = group.directory / "mqadmin" / "conf"
    conf.mkdir(parents=True)
    (conf / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {SECRET}\n")
    yield group
    group.stop()


def acked(number: int) -> Callable[[Any], bool]:
    return lambda events: sum(one["event"] == "acked" for one in events) >= number


def told_once(group: LocalCluster, command: str, expected: str) -> None:
    """One command of mqadmin 5 prints what matches."""
    [output] = printed(5, group, command)
    assert re.search(expected, output), f"{command}: {expected!r} is not in: {output}"


def test_mqadmin_keeps_users_and_policies_and_clients_are_judged_by_them(
    guarded: LocalCluster, drive: Callable[..., Driver]
) -> None:
    wait_for(guarded.leader, READY_S, lambda: "no leader")
    cluster = "-c DefaultCluster"
    three, judged = "(?s)(success.*){3}", "-s User:app -r Topic:Judged*,Group:G_*"
    for command, expected in (
        (f"createUser {cluster} -u app -p app-secret-1 -t Normal", three),
        (f"createUser {cluster} -u other -p other-secret", three),
        (f"createAcl {cluster} {judged} -a Pub,Sub -d Allow -i 127.0.0.1", three),
        (f"createAcl {cluster} -s User:app -r Topic:JudgedNot -a All -d Deny", three),
        (f"listUser {cluster}", r"(?s)app +app-secret-1 +Normal +enable.*inner.*other.*root"),
        (f"getUser {cluster} -u app", r"app +app-secret-1 +Normal +enable"),
        (f"getAcl {cluster} -s User:app", r"User:app +Custom +Topic:Judged\* .*Pub.*127.0.0.1.*Allow"),
        (f"listAcl {cluster} -s app -r JudgedNot", r"User:app +Custom +Topic:JudgedNot .*Deny"),
    ):
        told_once(guarded, command, expected)
    operator = ClientOptions(credentials=Credentials(ROOT, SECRET))
    with Producer("PG", guarded.namesrv_addr, client=operator) as producer:
        for name in ("Judged5", "Judged4", "JudgedNot"):
            producer.create_topic(name, 2)
    kinds = {"5": java_client(5, 1000, binary=True), "4": java_client(4, 1000)}

    def start(major: str, mode: str, topic: str, secret: str = "app-secret-1") -> Driver:
        kind: ClientKind = of(kinds[major], "app", secret)
        return drive(kind, mode, guarded.namesrv_addr, topic, f"G_{major}_{mode}")

    allowed = [
        (start(one, "produce", f"Judged{one}"), start(one, "consume", f"Judged{one}")) for one in kinds
    ]
    for producer_of, _ in allowed:
        producer_of.wait(acked(20), READY_S)
    guarded.kill_leader()
    for producer_of, consumer in allowed:
        producer_of.wait(acked(len(producer_of.named("acked")) + 20), READY_S)
        sent = {one["seq"] for one in producer_of.drained() if one["event"] == "acked"}
        consumer.wait(lambda events, sent=sent: sent <= {one.get("seq") for one in events}, READY_S)
    for pair in allowed:
        for one in pair:
            one.close()
    for driver, reason in (
        (start("5", "produce", "JudgedNot"), "the decision is deny"),
        (start("5", "produce", "Judged5", "wrong"), "check signature failed"),
    ):
        driver.wait(lambda events, reason=reason: any(told(one, reason) for one in events), READY_S)
        assert not driver.named("acked")


def test_mqadmin_changes_copies_and_deletes_them(guarded: LocalCluster) -> None:
    leader = guarded.addr(wait_for(guarded.leader, READY_S, lambda: "no leader"))
    other = next(guarded.addr(node) for node in NODES if guarded.addr(node) != leader)
    cluster = "-c DefaultCluster"
    for command, expected in (
        (f"createUser {cluster} -u app -p app-secret-1", "success"),
        (f"createAcl {cluster} -s User:app -r Topic:a,Topic:b -a Pub -d Allow", "success"),
        (f"updateUser {cluster} -u app -s disable", "(?s)(success.*){3}"),
        (f"getUser -b {other} -u app", r"app +app-secret-1 +Normal +disable"),
        (f"updateUser {cluster} -u app -p another-secret", "success"),
        (f"updateUser {cluster} -u app -s enable", "success"),
        (f"copyUser -f {leader} -t {other} -u app", "copy user of app .* success"),
        (f"updateAcl {cluster} -s User:app -r Topic:a -a Sub -d Deny", "(?s)(success.*){3}"),
        (f"copyAcl -f {leader} -t {other} -s User:app", "copy acl of User:app .* success"),
        (f"getAcl -b {leader} -s User:app", r"(?s)Topic:a +\S*Sub\S* .*Deny.*Topic:b +\S*Pub\S* .*Allow"),
        (f"deleteAcl {cluster} -s User:app -r Topic:a", "(?s)(success.*){3}"),
        (f"getAcl -b {leader} -s User:app", r"(?s)^(?!.*Topic:a).*Topic:b"),
        (f"deleteAcl {cluster} -s User:app", "(?s)(success.*){3}"),
        (f"deleteUser {cluster} -u app", "(?s)(success.*){3}"),
        (f"listUser {cluster}", r"(?s)^(?!.*app ).*root"),
    ):
        told_once(guarded, command, expected)
    anonymous = guarded.directory / "mqadmin" / "conf" / "tools.yml"
    anonymous.write_text("accessKey: app\nsecretKey: another-secret\n")
    told_once(guarded, f"listUser {cluster}", "User:app is not found")
    with (
        Producer("PG", guarded.namesrv_addr, client=ClientOptions()) as producer,
        pytest.raises(Exception, match=r"username cannot be null|No route"),
    ):
        producer.send(Message("Anything", b"x"))
