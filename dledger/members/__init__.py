"""Who belongs to a group (safety.md S18, S19).

* `config_log`        the configuration in force: entries of the log, effective at append, undone by a cut
* `effects`           what it means for this node: who votes, who gets entries, who is dialled
* `joining`           forming or joining a group, and what is noted of its members on disk
* `reconfiguration`   changes of members and leader, decided by the leader one at a time
* `search`            looks for configurations where nothing says where they are
* `requests`          the server side of the member commands
"""
