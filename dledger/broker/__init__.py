"""The RocketMQ broker above the replicated log.

* `app`, `cli`          composition and life cycle; the command line
* `broker`              one broker, and what the replicated log calls: apply, commit, change of role
* `feature`, `features`   the parts that one folder adds to the broker; all features together
* `core`                the parts that every feature uses
* `figures`             numbers for /metrics and for runtime info
* `leadership`          runs one leadership after the other; `services` live as long as one leadership
* `requests`            declares which method answers which code
* `leader_gate`         decides whether a request is served now, waits or is refused (safety.md S24)
* `commit_log`          turns requests into log entries, for the time of one leadership (S12)
* `pending_responses`   answers that wait until their entries are committed
* `intake`              receives what producers send
* `longpolling`         pulls of consumers; `filter` chooses their messages
* `offset`              consumer offsets
* `topic`               topics and consumer groups
* `clients`             connected clients
* `store`               data derived from the log: state, ConsumeQueues, snapshot, reading
* `registration`        registers the broker with the NameServers
* `stats`               statistics, and the offsets of topics and groups
* `admin`               settings and figures
* `http`                /health and /metrics
* `audit`               audits of a running broker

A message takes these steps:

1. `intake.send_processor` checks the request.
2. `commit_log` appends it to the log, and its answer waits in `pending_responses`.
3. The entry is committed, and `Broker.on_commit` sends the answer.
4. `store.dispatch` applies the entry to queues and state.
5. `longpolling.pull_processor` wakes the pulls that wait for the message.

For plain messages, `intake.plain_sends` does the first two steps, for all messages that were received in one
read from the connection.
"""
