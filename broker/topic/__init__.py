"""Topics and consumer groups.

* `topic_processor`   the codes that create and show them
* `topic_creation`    rules of creation, by request and by itself
* `topic_table`       all topics as they are registered
* `topic_names`       which names are allowed, which topics every broker has
"""
