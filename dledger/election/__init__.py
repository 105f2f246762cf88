"""Leader election of a group: terms, votes, roles and configurations. Pure: no clock, no network, no disk.

* `elector`         the state machine: it gets an event and returns a list of effects
* `effects`         the effects, which the caller of the elector performs in order
* `transitions`     the table of states, and of the causes that lead from one state to another
* `votes`           counts votes and answers
* `configuration`   the members of a group, and which change of them is allowed
* `identity`        how nodes introduce themselves, and how a new group forms
* `preferred`       when a leader hands over to a preferred leader
"""
