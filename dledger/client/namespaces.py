"""Namespaces (NamespaceUtil): an instance's name is put before the names of topics and groups, as in
`namespace%topic`."""

from __future__ import annotations

SEPARATOR = "%"
PREFIXES = ("%RETRY%", "%DLQ%")
SYSTEM = frozenset(
    {
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip
"""Topics that belong to no namespace (TopicValidator)."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""Suffix of the topics `<cluster>_REPLY_TOPIC`, which belong to no namespace. A message to such a topic is a
reply, and the broker passes it to the client that waits for it."""
SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")
"""Prefixes of further topics and groups that belong to no namespace."""


def with_namespace(name: str, namespace: str) -> str:
    """The name of a topic or group as brokers know it. A name that is in the namespace already stays as it
    is."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def without_namespace(name: str, namespace: str) -> str:
    """The name as the application knows it. A name that is not in the namespace stays as it is."""
    if not namespace or _is_system(name):
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + SEPARATOR)


def _is_system(name: str) -> bool:
    return name in SYSTEM or name.startswith(SYSTEM_PREFIXES) or name.endswith(REPLY_SUFFIX)


def _split(name: str) -> tuple[str, str]:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
