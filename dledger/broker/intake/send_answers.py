"""Answers to sends, and the properties that the broker adds to every message. Parts that are the same for all
messages are encoded only once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dledger.broker.config import BrokerConfig
from dledger.formats.properties import encode_properties
from dledger.remoting.codes import KEYS_LOOKED_UP, ResponseCode
from dledger.remoting.commands import Request, SerializeType
from dledger.remoting.frames import HEAD, JSON_TAIL, encode_response
from dledger.runtime.live_settings import LiveSettings


def added_properties(config: BrokerConfig) -> bytes:
    """The properties that this broker adds to each message."""
    return encode_properties(
        {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
            "CLUSTER": config.cluster_name,
        }
    ).encode()


class SendAnswers:
    """Encodes answers to sends, by the current settings."""

    def __init__(self, settings: LiveSettings[BrokerConfig]) -> None:
        self._settings = settings
        self.host_hex: str = settings.now.store_host.hex().upper()
        """Address of this broker in hexadecimal. Message ids begin with it (`formats.message_ids`)."""
        self._settings_changed(settings.now)
        settings.listen(self._settings_changed)

    def _settings_changed(self, config: BrokerConfig) -> None:
        region, trace = msgspec.json.encode(config.region_id), "true" if config.trace_on else "false"
        self.head: bytes = b'{"code":0,"extFields":{"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"' % (
            region,
            trace.encode(),
        )
        """Beginning of every answer that is encoded as JSON."""

    def encode(
        self,
        request: Request,
        positions: Sequence[int],
        queue_id: int,
        queue_offset: int,
        unique_key: bytes = b"",
        handle: str = "",
        store_host: bytes | None = None,
        keys: int = 0,
    ) -> bytes:
        """Return the whole frame of an answer. `positions` are physical offsets, one for each message.
        `unique_key` is the unique key of a message that was sent alone, not in a batch. `handle` is the text
        by which a timer message can be recalled. `store_host` is the address of the broker that stored the
        message; None for this broker. `keys` is the number of idempotency keys of a batch that were looked up
        (`KEYS_LOOKED_UP`)."""
        host = self.host_hex if store_host is None else store_host.hex().upper()
        ids = ",".join([f"{host}{position:016X}" for position in positions])
        if request.serialize is SerializeType.JSON:
            return self._json(request, ids.encode(), queue_id, queue_offset, unique_key, handle, keys)
        return self._binary(request, ids, queue_id, queue_offset, unique_key, handle, keys)

    def of_batch(self, request: Request, ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        """Return the whole frame of the answer to a batch. `ids` contains the offset message ids, separated
        by commas."""
        if request.serialize is SerializeType.JSON:
            return self._json(request, ids, queue_id, queue_offset, b"", "")
        return self._binary(request, ids.decode(), queue_id, queue_offset, b"", "")

    def _json(
        self,
        request: Request,
        message_ids: bytes,
        queue_id: int,
        queue_offset: int,
        unique_key: bytes,
        handle: str,
        keys: int = 0,
    ) -> bytes:
        transaction = b""
        if unique_key:
            transaction = b',"transactionId":' + quoted(unique_key)
        if handle:
            transaction += b',"recallHandle":"%b"' % handle.encode()
        if keys:
            transaction += b',"%b":"%d"' % (KEYS_LOOKED_UP.encode(), keys)
        header = b'%b%b","queueId":"%d","queueOffset":"%d"%b},"flag":1,"language":"JAVA","opaque":%d%b' % (
            self.head,
            message_ids,
            queue_id,
            queue_offset,
            transaction,
            request.opaque,
            JSON_TAIL,
        )
        size = len(header)
        return HEAD.pack(4 + size, size) + header

    def _binary(
        self,
        request: Request,
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        unique_key: bytes,
        handle: str,
        keys: int = 0,
    ) -> bytes:
        ext = {
            "msgId": message_ids,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "MSG_REGION": self._settings.now.region_id,
            "TRACE_ON": "true" if self._settings.now.trace_on else "false",
        }
        if unique_key:
            ext["transactionId"] = unique_key.decode(errors="replace")
        if handle:
            ext["recallHandle"] = handle
        if keys:
            ext[KEYS_LOOKED_UP] = str(keys)
        return encode_response(request, ResponseCode.SUCCESS, ext)


def quoted(value: bytes) -> bytes:
    """Return a value as a JSON string."""
    if value.isalnum():
        return b'"%b"' % value
    return msgspec.json.encode(value.decode(errors="replace"))
