"""The spooling producer for programs without an event loop; see `spooling_producer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dledger.client.message import Message, SendResult
from dledger.client.options import ClientOptions
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.spooling_producer import AsyncSpoolingProducer, Spooled, SpoolOptions, spool_of
from dledger.client.producing.sync_producer import Producer


class SpoolingProducer(Producer):
    """Sends messages, and keeps those that cannot be sent; see `AsyncSpoolingProducer`.

    >>> with SpoolingProducer("orders", spool="orders.spool") as producer:    # doctest: +SKIP
    ...     producer.deliver(Message("orders", b"17"), ordering_key="customer-7")
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
        *,
        spool: str | SpoolOptions,
    ) -> None:
        super().__init__(group, namesrv, options, client)
        self.spool_options: SpoolOptions = spool_of(spool)

    def _make(self) -> AsyncProducer:
        self._begin_anew()
        return AsyncSpoolingProducer(
            self.group, self._namesrv, self.options, self._client, spool=self.spool_options
        )

    @property
    def spooled(self) -> int:
        """Number of messages in the spool."""
        return cast(AsyncSpoolingProducer, self._open()[0]).spooled

    @property
    def refused(self) -> int:
        """Number of messages that the cluster refused when they were sent from the spool; see the log."""
        return cast(AsyncSpoolingProducer, self._open()[0]).refused

    # Generated from AsyncSpoolingProducer by scripts/blocking_methods.py: change it there.

    def deliver(self, message: Message, ordering_key: str | None = None) -> SendResult | Spooled:
        """Send a message and wait for the acknowledgement, or until the message is kept on this machine.

        The message is kept if no broker acknowledged it within `ProducerOptions.timeout_s`. While other
        messages wait in the spool it is kept at once. Raises InvalidMessage, TopicNotFound, SendFailed (a
        broker refused the message), Overflow (the spool is full) or SpoolFailed; after all of these the
        message is neither stored nor kept.
        """
        return self._run(lambda inner: cast(AsyncSpoolingProducer, inner).deliver(message, ordering_key))

    def delivered(self, timeout_s: float | None = None) -> bool:
        """Wait until the spool is empty. Returns False if `timeout_s` is over first."""
        return self._run(lambda inner: cast(AsyncSpoolingProducer, inner).delivered(timeout_s))
