"""Versions of the protocol between peers, and what each version added."""

PROTOCOL_MIN = 1
"""The oldest version that this program speaks."""
PROTOCOL_MAX = 4
"""The newest version that this program speaks."""
PROTOCOL_WITH_PROOF = 2
"""From this version on hellos carry a nonce, so that bytes recorded on an earlier connection are refused. It
is the lowest version that is spoken by default."""
PROTOCOL_WITH_INSTALL = 2
"""From this version on a peer accepts snapshots."""
PROTOCOL_WITH_PIECES = 4
"""From this version on a large frame may be sent in pieces, with other frames between them
(`dledger.peers.outbox`)."""
