"""What options of `dledger import`, `export` and `mirror` are when nobody gives them."""

CHECKPOINT_BYTES = 256 << 20
"""Bytes that are written between two points from which a cut run goes on."""
LOOK_BACK = 4096
"""Messages of others at the end of a new queue behind which the last copy is looked for."""
