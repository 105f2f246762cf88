"""A group that clients reach with TLS only, NameServer and forwarding included."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger import ClientError, ClientOptions, Message, Producer, PullConsumer, TlsOptions
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from tests.dledger.certificates import Authority


@pytest.mark.parametrize("redirect", [True, False], ids=["redirected", "forwarded"])
def test_our_client_over_tls_before_and_after_a_leader_kill(
    redirect: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    authority = Authority(tmp_path)
    issued, ca = authority.issue("broker", "broker"), str(authority.certificate)
    tls = {"tls.server.certPath": issued.certificate, "tls.server.keyPath": issued.key}
    own = {"tls.server.mode": "enforcing", "tls.enable": "true", "tls.client.trustCertPath": ca}
    spec = ClusterSpec(base_port=find_base_port(start=24000), segment_size=16 * MIB, broker={**tls, **own})
    group = LocalCluster.create(tmp_path / "group", spec)
    with (tmp_path / "group" / "conf" / "namesrv.conf").open("a") as file:
        file.writelines(f"{key}={value}\n" for key, value in tls.items())
    group.start()
    request.addfinalizer(group.stop)
    secure = ClientOptions(tls=TlsOptions(ca=ca), redirect=redirect)
    with Producer("PG", group.namesrv_addr, client=secure) as producer:
        producer.create_topic("T", 1)
        for number in range(20):
            if number == 10:
                group.kill_leader()
            producer.send(Message("T", b"%d" % number))
    with PullConsumer("CG", group.namesrv_addr, client=secure) as consumer:
        consumer.assign(consumer.queues("T"), "first")
        got: list[bytes] = []
        while len(got) < 20:
            messages = consumer.poll(10)
            assert messages
            got += [message.body for message in messages]
    assert got == [b"%d" % number for number in range(20)]
    for options, said in (
        (ClientOptions(failover_timeout_s=1.0, tls=TlsOptions()), "certificate verify failed"),
        (ClientOptions(failover_timeout_s=1.0), "broker-a"),
    ):
        with (
            Producer("PG", group.namesrv_addr, client=options) as producer,
            pytest.raises(ClientError, match=said),
        ):
            producer.create_topic("U", 1)
