"""Defaults of options of `dledger import`, `export` and `mirror`."""

CHECKPOINT_BYTES = 256 << 20
"""Bytes that are written between two checkpoints, from which an interrupted run resumes."""
LOOK_BACK = 4096
"""Messages at the end of a new queue that are searched for the last copy, if others have sent messages after
it."""
