"""What producers send.

* `send_processor`   the send codes: checks first, then the message is sealed
* `disposition`      what kind of message it is: the one place where that is decided
"""
