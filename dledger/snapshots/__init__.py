"""Snapshots of the state machine at segment boundaries.

See safety.md S14, S20, S21, and docs/explanation/decisions/0006.

* `catalog`: the directory `snapshots`: publish, load, remove.
* `boundary`: takes a snapshot when the applier reaches the end of a segment.
* `sender`, `receiver`: the two sides of an install. In an install a leader sends a snapshot to a peer that
  needs entries which the leader has no longer.
* `retainer`: carries out what retention (`dledger/log/retention.py`) decides.
* `service`: puts the parts together for the node.
"""
