"""Drives PyPI `rocketmq` 0.4.4 (a C++ client): pyrocketmq.py MODE NAMESRV TOPIC GROUP.

MODE: produce, rush (as fast as it goes, several at once), consume, orderly, tags (TagB only), broadcast.

One JSON object a line on standard output; ends when standard input closes. Found by PYTHONPATH.
"""

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.ffi import MessageModel

INTERVAL_S = 0.05


def say(**event: object) -> None:
    line = json.dumps({"ms": int(time.time() * 1000), **event})
    os.write(1, (line + "\n").encode())  # whole lines, also from the C++ client's threads


def sign(client: Producer | PushConsumer) -> None:
    """With the account in the environment, where there is one."""
    if "ROCKETMQ_ACCESS_KEY" in os.environ:
        keys = os.environ["ROCKETMQ_ACCESS_KEY"], os.environ["ROCKETMQ_SECRET_KEY"]
        client.set_session_credentials(*keys, "")


def produce(namesrv: str, topic: str, group: str, end: threading.Event) -> None:
    producer = Producer(group)
    producer.set_namesrv_addr(namesrv)
    sign(producer)
    producer.start()
    say(event="ready")
    seq = 0
    while not end.is_set():
        message = Message(topic)
        message.set_keys(f"key-{seq}")
        message.set_tags("TagA")
        message.set_body(str(seq))
        try:
            result = producer.send_sync(message)
        except Exception as error:  # the client raises one class per C++ error code
            say(event="failed", seq=seq, text=str(error))
        else:
            if int(result.status) == 0:
                say(event="acked", seq=seq, id=result.msg_id)
                seq += 1
            else:
                say(event="failed", seq=seq, text=str(result.status))
        end.wait(INTERVAL_S)


def rush(namesrv: str, topic: str, group: str, end: threading.Event) -> None:
    """Four threads, each message once: what is repeated the client repeats by itself. Counts each second."""
    producer = Producer(group)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    say(event="ready")
    counts = {"acked": 0, "failed": 0}
    lock = threading.Lock()

    def send() -> None:
        while not end.is_set():
            message = Message(topic)
            message.set_body("x")
            try:
                ended = "acked" if int(producer.send_sync(message).status) == 0 else "failed"
            except Exception:
                ended = "failed"
            with lock:
                counts[ended] += 1

    for _ in range(4):
        threading.Thread(target=send, daemon=True).start()
    while not end.wait(1.0):
        say(event="rushed", **counts)


def consume(namesrv: str, topic: str, group: str, end: threading.Event, mode: str) -> None:
    model = MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING
    consumer = PushConsumer(group, orderly=mode == "orderly", message_model=model)
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)

    def received(message: object) -> None:
        say(
            event="received",
            seq=int(message.body),  # type: ignore[attr-defined]
            keys=message.keys.decode(),  # type: ignore[attr-defined]
            tag=message.tags.decode(),  # type: ignore[attr-defined]
            queue=message.queue_id,  # type: ignore[attr-defined]
            offset=message.queue_offset,  # type: ignore[attr-defined]
        )

    consumer.subscribe(topic, received, "TagB" if mode == "tags" else "*")
    consumer.start()
    say(event="ready")
    end.wait()


def main() -> None:
    mode, namesrv, topic, group = sys.argv[1:5]
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    if mode == "produce":
        produce(namesrv, topic, group, end)
    elif mode == "rush":
        rush(namesrv, topic, group, end)
    else:
        consume(namesrv, topic, group, end, mode)
    os._exit(0)  # the C++ client's destructors may hang when a broker is gone


if __name__ == "__main__":
    main()
