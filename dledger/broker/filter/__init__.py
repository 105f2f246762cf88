"""Filters: which messages a consumer gets.

* `message_filter`   filters as values: by the tag code in the ConsumeQueue, by properties in the log
* `sql_filter`       conditions on properties (SQL92): `sql_grammar` parses, `sql_nodes` checks and evaluates,
  `sql_values` compares as Java does
* `retry_filter`     messages of a retry topic, by the condition on the topic that they came from
* `verdicts`         results of a filter for a tag code
"""
