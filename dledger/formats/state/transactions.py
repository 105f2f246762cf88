"""Transactions that are open: half messages whose producer has not said what becomes of them.

RocketMQ notes in a topic of its own which half messages are done (RMQ_SYS_TRANS_OP_HALF_TOPIC), after it has
put the message to its topic: a switch of the master between the two delivers it twice. Here a row says that a
transaction is open, and its removal is in one batch with the message that a commit puts.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Int32, Offset, Row

MAX_WAIT_MS = 7 * 24 * 3600 * 1000
"""How long a check may be put off (CHECK_IMMUNITY_TIME_IN_SECONDS, transactionCheckInterval)."""
TRANSACTION, TRANSACTION_END = "transaction", "transaction_end"

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Milliseconds since the epoch."""


class Transaction(Row, frozen=True):
    """One open transaction.

    `half`: queue offset of its half message, as its producer was told (tranStateTableOffset). `at`: that of
    the copy which was put last: each check puts it again, so that retention does not take what waits.
    `time`, `wait`: when that was, by the clock of who led, and after what time its producer is asked, in ms.
    `checks`: how often it was asked.
    """

    operation: ClassVar[str] = TRANSACTION
    half: Offset
    at: Offset
    time: Time
    wait: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT_MS)]
    checks: Int32 = 0


TRANSACTIONS = Declared[int, Transaction](
    "transactions", Transaction, key=("half",), since=5, remove=TRANSACTION_END
)
