"""The replicated commit log: Raft election, replication and storage. Knows nothing of topics.

* `election/`     who leads: terms, votes, heartbeats, members (pure)
* `replication/`  what is replicated and committed (pure)
* `log/`          segments, index files, group commit, recovery
* `node`          the shell: runs the pure parts on asyncio, over `links`
* `host`          what the state machine above the log must offer
* `messages`      catalogue of every peer message; `wire` their encoding
* `client`        the DLedger client protocol (append, get, metadata)

Follow a message: `Node.appender` seals entries -> `Node._pump` hands the batch to `log.store` (write and
fsync by a worker) and to `replication.leader` (push to followers) -> acknowledgements move the commit
index -> `Host.on_commit`, then `Host.apply`.
"""
