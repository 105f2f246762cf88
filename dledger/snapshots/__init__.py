"""Snapshots of the state machine at segment boundaries.

See safety.md S14, S20, S21, and docs/explanation/decisions/0006.

* `catalog`: the directory `snapshots`: publish, load, remove.
* `boundary`: takes a snapshot when the applier comes to the end of a segment.
* `sender`, `receiver`: a leader's install of a peer that is behind its log, and the receiving side of it.
* `retainer`: carries out what retention (`dledger/log/retention.py`) decides.
* `service`: the parts together, as the node uses them.
"""
