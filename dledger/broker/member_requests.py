"""Requests between the brokers of a group carry a proof that they come from one (`dledger.peers.proofs`).

The proof is a header field. It covers the request code, whether the request is forwarded, all other header
fields and the body, so it cannot be moved to another request. Language, version and number of the request are
left out: they change nothing that only a member may do. BLAKE2b takes some 5 ms for a body of 4 MiB, so no
worker is needed.

A member with an older program shares no secret and makes no proof. It gets requests without a proof, because
it would take the field for one that a client has signed. Its own requests are accepted by their address, as
long as it answers at its peer address as an older program.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger.broker.ports import Node
from dledger.remoting.commands import FLAG_FORWARDED

_SORTED = msgspec.json.Encoder(order="sorted")
MEMBER_PROOF = "memberProof"
"""Header field of a request from one broker to another of its group."""


def content_of(code: int, flag: int, fields: Mapping[str, str], body: bytes) -> list[bytes]:
    """The content that a proof covers; `fields` are without the proof."""
    return [b"%d" % code, b"%d" % (flag & FLAG_FORWARDED), _SORTED.encode(fields), body]


def with_proof(
    node: Node, address: str, code: int, fields: Mapping[str, str], body: bytes, flag: int = 0
) -> dict[str, str]:
    """Header fields of a request to the broker at an address, with a proof if that broker has shared a
    secret."""
    own = {name: value for name, value in fields.items() if name != MEMBER_PROOF}  # a client's is nobody's
    for peer in node.proof_receivers:
        if node.peer_meta(peer).get("client_addr") == address:
            proof = node.prove(peer, content_of(code, flag, own, body))
            return {**own, MEMBER_PROOF: proof} if proof else own
    return own
