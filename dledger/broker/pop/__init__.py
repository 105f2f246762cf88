"""Pop consumption: consumers take messages from the broker one by one, without being assigned queues of their
own (PopMessageProcessor and the classes that belong to it).

* `pop_ledger`: which messages are invisible, and until when
* `pop_processor`: the requests that pop or peek at messages, or wait for them
* `pop_hold`: pops that wait for messages
* `pop_order`: how the state changes when messages are popped in order
* `ack_processor`: acknowledgements, and changes of the invisible time
* `revive_service`: delivers messages again that were not acknowledged
"""
