"""What producers send.

* `send_processor`        the send codes: checks first, then the message is sealed
* `send_back_processor`   what consumers give back, to get it again later
* `disposition`           what kind of message it is: the one place where that is decided
"""
