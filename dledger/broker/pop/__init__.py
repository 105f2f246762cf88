"""Pop consumption (PopMessageProcessor and what belongs to it).

* `pop_ledger`       what is invisible, and until when
* `pop_processor`    who pops, looks, or waits for messages
* `pop_hold`         pops that wait for messages
* `pop_order`        pops in order: what one changes
* `ack_processor`    acknowledgements, and longer or shorter invisible times
* `revive_service`   what was not acknowledged comes again
"""
