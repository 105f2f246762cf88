"""The base of every part of a node: `snapshots`, `files`, `members` and `node` import it.

* `node_context`     what all parts of a node may use
* `node_events`      what the parts report to the node
* `config_log`       the configuration in force, which comes from entries of the log
* `config_entries`   finds and reads the configurations among the entries of a log
* `elections`        runs the elector: sets its timer, performs its effects, saves term and vote
* `applier`          passes committed entries to the host
"""
