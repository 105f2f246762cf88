"""Consumer offsets.

* `offset_processor`: the requests that query and commit offsets
* `reset_processor`: the requests that reset offsets
* `group_topics`: the topics in which a group has offsets
* `pending_offsets`: offsets that consumers have committed, but that are not in the log yet
* `pull_offsets`: how far each group has pulled
"""
