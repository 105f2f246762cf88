"""The RocketMQ broker above the replicated log.

* `app`, `cli`          composition and life cycle; the command line
* `broker`              one broker; the calls of the replicated log: apply, commit, change of role
* `feature`, `features`   the parts that a folder adds, and all features together
* `core`                the parts that every feature uses; others are passed to constructors
* `figures`             numbers for /metrics and for runtime info
* `leadership`          one leadership after the other; `services` that live as long as one
* `requests`            declares which method answers which code
* `leader_gate`         whether to refuse, hold or pass a request now (safety.md S24)
* `commit_log`          turns requests into log entries, for the time of one leadership (S12)
* `pending_responses`   answers that wait for the commit of their entry
* `intake`              receives what producers send
* `longpolling`         pulls of consumers; `filter` chooses their messages
* `offset`              consumer offsets; `topic` topics and consumer groups; `clients` connected clients
* `store`               data derived from the log: state, ConsumeQueues, snapshot, reading
* `registration`        registers the broker with the NameServers
* `stats`               statistics, and the offsets of topics and groups
* `admin`               settings and figures; `http` /health and /metrics
* `audit`               audits of a running broker

Follow a message: `intake.send_processor` checks the request -> `commit_log` appends it to the log and puts
the answer into `pending_responses` -> commit -> `Broker.on_commit` sends the answers -> `store.dispatch`
applies the entries to queues and state -> `longpolling.pull_processor` wakes held pulls. Plain messages take
the first three steps together with all others of their read, in `intake.plain_sends`.
"""
