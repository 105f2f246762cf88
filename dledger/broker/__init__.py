"""The RocketMQ broker above the replicated log.

* `app`, `cli`          composition and life; the outer shell
* `broker`              one broker; what the replicated log calls: apply, commit, change of role
* `feature`, `features`   what a folder brings, and all of them together
* `core`                what every feature stands on; all else is named in constructors
* `figures`             numbers for /metrics and for runtime info
* `leadership`          one leadership after the other; `services` what lives as long as one
* `requests`            which method answers which code
* `leader_gate`         who may serve now: refuse, hold or pass a request (safety.md S24)
* `commit_log`          turns requests into log entries, for the time of one leadership (S12)
* `pending_responses`   answers that wait for the commit of their entry
* `intake`              what producers send
* `longpolling`         what consumers pull; `filter` which messages they want
* `offset`              consumer offsets; `topic` topics and consumer groups; `clients` who is connected
* `store`               what is derived from the log: state, ConsumeQueues, snapshot, reading
* `registration`        tells the NameServers who leads
* `stats`               what went through, and where topics and groups stand
* `admin`               settings and figures; `http` /health and /metrics
* `audit`               auditors of a running broker

Follow a message: `intake.send_processor` checks the request -> `commit_log` appends it to the log and puts
the answer into `pending_responses` -> commit -> `Broker.on_commit` sends the answers -> `store.dispatch`
applies the entries to queues and state -> `longpolling.pull_processor` wakes held pulls. Plain
messages take the first three steps together with all others of their read, in `intake.plain_sends`.
"""
