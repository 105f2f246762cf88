"""Names of RocketMQ's versions, which clients and brokers announce as numbers (MQVersion). Pure."""

from __future__ import annotations

_FIRST = (
    "V3_0_0_SNAPSHOT",
    "V3_0_0_ALPHA1",
    *(f"V3_0_0_BETA{number}" for number in range(1, 6)),
    *(f"V3_0_0_BETA{number}{end}" for number in range(6, 10) for end in ("_SNAPSHOT", "")),
    "V3_0_0_FINAL",
)


def _patches(major: int, minor: int) -> range:
    if (major, minor) == (3, 0):
        return range(1, 16)
    return range(1 if major == 3 and minor >= 3 else 0, 10)


_NAMES = (
    *_FIRST,
    *(
        f"V{major}_{minor}_{patch}{end}"
        for major in (3, 4, 5)
        for minor in range(10)
        for patch in _patches(major, minor)
        for end in ("_SNAPSHOT", "")
    ),
)


def version_name(number: int) -> str:
    """
    >>> version_name(479)
    'V5_3_3'
    """
    return _NAMES[max(number, 0)] if number < len(_NAMES) else "HIGHER_VERSION"
