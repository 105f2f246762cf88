"""Consumer offsets.

* `offset_processor`   the codes that query and report offsets
* `group_topics`       the topics in which a group has offsets
* `pending_offsets`    offsets that were reported and are not in the log yet
"""
