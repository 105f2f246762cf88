"""The RocketMQ broker above the replicated log.

* `config`, `app`, `__main__`   settings, composition, outer shell
* `broker`                      one broker; what the replicated log calls: apply, commit, change of role
* `leader_gate`                 who may serve now: refuse, hold or pass a request (safety.md S24)
* `commit_log`                  turns requests into log entries, for the time of one leadership (S12)
* `pending_responses`           answers that wait for the commit of their entry
* `processors/`                 one module per family of request codes
* `store/`                      what is derived from the log: state, ConsumeQueues, snapshot, reading
* `registration`                tells the NameServers who leads
* `http`                        /health and /metrics

Follow a message: `processors.send` checks the request -> `commit_log` appends it to the log and puts the
answer into `pending_responses` -> commit -> `Broker.on_commit` sends the answers -> `store.dispatch` applies
the entries to queues and state -> `processors.pull` wakes held pulls.
"""
