"""Compiled twins of the hottest loops. They are optional: Python code can do everything that they do.

| function     | its Python twin, which is the specification                                          |
|--------------|--------------------------------------------------------------------------------------|
| `seal_sends` | `dledger.broker.intake.plain_sends.seal_sends`: turns frames of send requests into   |
|              | sealed entries (encoded, with checksums). Signed send requests have no Python twin:  |
|              | without the compiled one they take the general path (`dledger.broker.auth`)          |
| `measure_batch`, `seal_batch` | `dledger.broker.intake.send_processor`, `CommitLogWriter.add_batch` |
| `check_run`  | `dledger.log.incoming.check_run`: a follower's check of what the leader pushed       |
| `dispatch`   | `dledger.broker.store.dispatch.Dispatcher`: turns committed messages into units of   |
|              | the ConsumeQueue                                                                     |
| `restore`    | `dledger.broker.timer.timer_service`, `dledger.broker.schedule.delay_service`: turns |
|              | delayed messages into the sealed entries of their delivery                           |
| `index_keys` | `dledger.broker.store.key_files.keys_in`: hashes the keys of the messages in a       |
|              | window of the log                                                                    |
| `read_messages` | `dledger.client.encoding.received_all`: turns the records of an answer into messages |

A compiled twin does only the plain cases. If anything is unusual or wrong, it stops there or refuses, and
the Python twin continues from that place. So a compiled twin contains no errors, no messages for people and
no rare cases. The caller has both:

    if FAST is not None:
        at = FAST.seal_sends(buffer, at, ...)
    at = seal_sends(buffer, at, ...)

Tests run both with the same input, valid and broken, and compare bytes and state:
tests/test_compiled_twins.py, tests/broker/test_plain_sends.py and tests/broker/test_restored_messages.py.

The compiled module is built from `compiled.pyx` at install, and is used if it is there, unless
`DLEDGER_FAST=0` is set. It contains a hash of its source, and is not used beside a different `compiled.pyx`.
See decision 0036.
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
"""Environment variable. With 0, the compiled twins are not used."""

if TYPE_CHECKING:
    from dledger._fast import compiled as _compiled


def source_hash() -> str:
    """Return a hash of the file `compiled.pyx` beside this module; empty if there is no such file, as in
    an installed wheel."""
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
