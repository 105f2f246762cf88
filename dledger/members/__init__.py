"""The members of a group (safety.md S18, S19).

* `effects`         what the configuration in force means for this node: who votes, gets entries, is dialled
* `joining`         forming or joining a group, and what is saved of its members on disk
* `config_search`   searches for configurations when nothing records where they are
"""
