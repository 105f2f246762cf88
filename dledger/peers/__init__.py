"""Communication between the nodes of a group (docs/reference/protocol.md).

* `peers`        which peers are connected, with which identity; `links` one connection, `listener` the port
* `dialling`     connects to a peer by name; `dials` keeps one task for each peer to connect to
* `outbox`       frames that wait for a connection, and how they are cut; `wire` the encoding of frames
* `held`         keeps messages of peers back, in order, while term and vote are saved
* `replicator`   performs what replication asks for; `cold_pushes` reads entries for peers that lag far
* `log_client`   a client of the group (DLedgerClient)
* `refusals`     connections and frames refused on the port, counted by cause
"""
