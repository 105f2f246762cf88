"""Topics and consumer groups.

* `topic_processor`    requests that create, delete and show topics and groups
* `topic_creation`     rules of creation, on request and automatic
* `deletion`           rules of deletion
* `deletion_service`   removes the record of a deletion when it is no longer needed
* `deleted_messages`   finds messages that wait for a topic that was deleted
* `announcements`      delays answers until the NameServers know a new topic
* `shown`              groups as RocketMQ shows them
* `topic_table`        all topics, encoded for registration
* `topic_names`        rules for names, and the topics that every broker has
"""
