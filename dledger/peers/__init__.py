"""Nodes of a group talking to each other (docs/reference/protocol.md).

* `peers`        who is connected, with which identity; `links` one connection, `listener` the port
* `dialling`     reaching a peer by name; `dials` keeps one task for each peer that is wanted
* `outbox`       what waits for a connection, and how it is cut; `wire` the encoding of frames
* `held`         what peers said, held back in order while the disk is asked
* `replicator`   performs what replication asks for; `cold_pushes` reads entries for peers that lag far
* `log_client`   a client of the group (DLedgerClient)
* `refusals`     what is refused on the port, counted by cause
"""
