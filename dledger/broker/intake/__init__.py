"""Handling of the messages that clients send to a broker.

* `send_processor`: the requests that send messages. All checks come first; then the message is sealed
  (encoded as an entry of the log)
* `plain_sends`: the fast path for the most frequent kind of send
* `send_checks`: reasons to refuse a send
* `resends`: recognizes messages that are sent again
* `send_back_processor`: messages that consumers send back, to receive them again later
* `disposition`: the only place that decides the kind of a message, for example delayed or transactional
"""
