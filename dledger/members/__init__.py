"""The members of a group (safety.md S18, S19).

* `effects`         what the configuration in force means for this node: which nodes vote, get entries,
                    and are connected
* `joining`         forming or joining a group, and what is saved of its members on disk
* `config_search`   searches the log for configurations when no file records where they are
"""
