"""Defaults of options of `dledger import`, `export` and `mirror`."""

CHECKPOINT_BYTES = 256 << 20
"""Number of bytes that are written between two checkpoints. An interrupted run resumes from the last
checkpoint."""
LOOK_BACK = 4096
"""How many messages at the end of a new queue are searched for the last copy that an earlier run made.
Messages that others sent may follow this copy."""
