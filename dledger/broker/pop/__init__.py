"""Pop consumption (PopMessageProcessor and what belongs to it).

* `pop_ledger`       which messages are invisible, and until when
* `pop_processor`    the codes that pop, peek, or wait for messages
* `pop_hold`         pops that wait for messages
* `pop_order`        pops in order: how one changes the state
* `ack_processor`    acknowledgements, and longer or shorter invisible times
* `revive_service`   messages that were not acknowledged are delivered again
"""
