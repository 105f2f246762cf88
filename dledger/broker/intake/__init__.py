"""Receiving what producers send.

* `send_processor`        the send codes: checks first, then the message is sealed
* `send_back_processor`   messages that consumers send back, to get them again later
* `disposition`           decides what kind of message was sent, here and nowhere else
"""
