"""Which messages a consumer wants.

* `message_filter`   filters as values: by the tag code in the ConsumeQueue, by properties in the log
"""
