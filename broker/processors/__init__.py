"""Request handlers by family. Each is synchronous: it answers now, later through the connection, or never
(oneway). A check that fails raises `remoting` errors or answers with RocketMQ's response code."""
