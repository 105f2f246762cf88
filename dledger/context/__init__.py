"""The base of every part of a node: `snapshots`, `files`, `members` and `node` import it.

* `node_context`     what all parts of a node may use
* `node_events`      what the parts report to the node
* `config_log`       the configuration in force: entries of the log, effective at append, undone by a cut
* `config_entries`   finds and reads the configurations among the entries of a log
* `elections`        the shell of the elector: its timer, its effects, term and vote on the disk
* `applier`          passes committed entries to the host
"""
