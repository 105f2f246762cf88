"""The topic of message trace is there where the settings want it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.broker.topic.topic_names import is_system_topic, system_topics
from dledger.formats.state import TopicConfig
from tests.broker.harness import make_config


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "Traces"])
def test_brokers_have_a_trace_topic_that_clients_may_send_to(name: str, tmp_path: Path) -> None:
    assert name not in system_topics(make_config(str(tmp_path), trace_topic=name))
    topics = system_topics(make_config(str(tmp_path), trace_topic_enable=True, trace_topic=name))
    assert topics[name] == TopicConfig(name, 1, 1, 6)
    assert not is_system_topic(name)
