"""Views derived from the log, which can be deleted and rebuilt (architecture rule 1).

* `consume_queue`   position, size and tag code of each message of a queue
* `dispatch`        applies committed entries to queues and state
* `message_store`   opens the queues and the state; flushes them and takes snapshots in the background
* `reader`          reads messages by queue offset, time and position
* `index_service`   finds messages by key; `key_files` are its files
* `config_export`   tables of the state in RocketMQ's files, for tools

The replicated state itself is in `formats.state`, because audits read it too.
"""
