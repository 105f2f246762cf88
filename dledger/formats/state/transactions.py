"""Open transactions: half messages whose producer has not yet committed or rolled back.

RocketMQ first puts the message of a commit into its topic, and then records in another topic
(RMQ_SYS_TRANS_OP_HALF_TOPIC) that the half message is finished. If the master changes between the two, the
message is delivered twice. Here a row records that a transaction is open, and a commit removes the row in one
batch with the message that it puts.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Int32, Offset, Row

MAX_WAIT_MS = 7 * 24 * 3600 * 1000
"""Longest time in ms for which a check may be delayed (CHECK_IMMUNITY_TIME_IN_SECONDS,
transactionCheckInterval)."""
TRANSACTION, TRANSACTION_END = "transaction", "transaction_end"

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A time in milliseconds since the epoch."""


class Transaction(Row, frozen=True):
    """One open transaction.

    * `half`: queue offset of its half message, as reported to its producer (tranStateTableOffset).
    * `at`: queue offset of the newest copy of the half message. Each check puts a new copy, so that retention
      does not remove the message.
    * `time`: when the newest copy was put, by the leader's clock, in ms.
    * `wait`: time in ms after which the producer is asked for the outcome.
    * `checks`: how often the producer was asked.
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
