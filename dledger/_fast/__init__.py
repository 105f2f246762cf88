"""Compiled twins of the hottest loops: optional, and nothing that is not in Python as well.

| here         | its Python twin, which is the specification                                          |
|--------------|--------------------------------------------------------------------------------------|
| `seal_sends` | `dledger.broker.intake.plain_sends.seal_sends`: frames of sends to sealed entries;   |
|              | of signed ones the way of all requests (`dledger.broker.auth`)                       |
| `measure_batch`, `seal_batch` | `dledger.broker.intake.send_processor`, `CommitLogWriter.add_batch` |
| `check_run`  | `dledger.log.incoming.check_run`: a follower's check of what the leader pushed       |
| `dispatch`   | `dledger.broker.store.dispatch.Dispatcher`: committed messages to ConsumeQueue units |
| `restore`    | `dledger.broker.timer.timer_service`, `dledger.broker.schedule.delay_service`:       |
|              | messages that waited to the sealed entries of their delivery                         |
| `index_keys` | `dledger.broker.store.key_files.keys_in`: hashes of messages' keys, of a window of the log |
| `read_messages` | `dledger.client.encoding.received_all`: records of an answer to messages          |

A twin does the plain cases, and nothing else: where anything is unusual or wrong it stops, or says no,
and the Python twin goes on from there. So it knows no error, no message for people and no rare form.
Whoever calls has both:

    if FAST is not None:
        at = FAST.seal_sends(buffer, at, ...)
    at = seal_sends(buffer, at, ...)

Tests drive both with the same input, good and broken, and compare bytes and state:
tests/test_compiled_twins.py, and tests/broker/test_plain_sends.py and test_restored_messages.py. What is
built from `compiled.pyx` at install is used where it is there; `DLEDGER_FAST=0` leaves it alone. It keeps
a hash of that source, and is not used beside another one. See decision 0036.
"""

from __future__ import annotations

from hashlib import sha256
from pkgutil import get_data
from types import ModuleType
from typing import TYPE_CHECKING
from warnings import warn

from dledger.formats import plain_messages
from dledger.runtime.environment_variables import variable

SWITCH = "DLEDGER_FAST"
"""Environment variable: 0 leaves the compiled twins alone."""

if TYPE_CHECKING:
    from dledger._fast import compiled as _compiled


def source_hash() -> str:
    """Hash of `compiled.pyx` beside this module; empty where there is none, as in an installed wheel."""
    try:
        source = get_data(__name__, "compiled.pyx")
    except OSError:
        return ""
    return sha256(source or b"").hexdigest()


def _load() -> ModuleType | None:
    if variable(SWITCH) == "0":
        return None
    try:
        from dledger._fast import compiled
    except ImportError:  # not built: no compiler, or no Cython, at install
        return None
    if source_hash() not in ("", getattr(compiled, "SOURCE", None)):
        # One that was built from another source may not fit the Python around it.
        text = (
            "the compiled modules were built from another version of the source and are not used: "
            "install dledger again"
        )
        warn(text, RuntimeWarning, stacklevel=2)
        return None
    compiled.set_up(plain_messages.MARKS, plain_messages.SPECIAL_FLAGS)
    return compiled


if TYPE_CHECKING:
    FAST = _compiled if SWITCH else None
else:
    FAST = _load()
    """The compiled twins, or None: then the Python twins do all."""
