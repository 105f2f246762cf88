"""Leader election of a group: terms, votes, roles and configurations. Pure: no clock, no network, no disk.

* `elector`         the state machine: an event goes in, a list of effects comes out
* `effects`         the effects that the elector asks of its caller, performed in order
* `transitions`     the table of roles, and of the causes that lead from one to another
* `votes`           counts votes and answers
* `configuration`   the members of a group, and which change of them is allowed
* `identity`        how nodes introduce themselves, and how a new group forms
* `preferred`       when a leader hands over to the preferred one
"""
