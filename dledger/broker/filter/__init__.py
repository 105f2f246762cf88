"""Filters, which decide the messages of a queue that a consumer gets.

* `message_filter`: the interface of all filters, and the filter by tags
* `sql_filter`: the filter by a condition on properties (SQL92); `sql_grammar` parses the condition,
  `sql_nodes` checks and evaluates it, `sql_values` compares values as Java does
* `retry_filter`: for messages of a retry topic, the filter of the topic that each message came from
* `verdicts`: the three results of a filter for a tag code
"""
