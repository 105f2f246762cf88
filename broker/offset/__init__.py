"""Consumer offsets.

* `offset_processor`   the codes that ask for offsets and report them
* `pending_offsets`    what was reported and is not in the log yet
"""
