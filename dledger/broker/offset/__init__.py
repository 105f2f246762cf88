"""Consumer offsets.

* `offset_processor`   the codes that ask for offsets and report them
* `group_topics`       which topics a group has offsets in
* `pending_offsets`    what was reported and is not in the log yet
"""
