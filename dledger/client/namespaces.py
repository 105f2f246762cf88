"""Namespaces (NamespaceUtil): names of topics and groups with an instance's name before them, as in
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
"""Topics that are in no namespace (TopicValidator)."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""Messages to `<cluster>_REPLY_TOPIC` are replies, which brokers hand to who asked; in no namespace."""
SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")
"""Of topics and of groups that are in none either."""


def with_namespace(name: str, namespace: str) -> str:
    """The name of a topic or group as brokers know it; as it is where it is in the namespace already."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def without_namespace(name: str, namespace: str) -> str:
    """The name as the application knows it; as it is where it is not in the namespace."""
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
