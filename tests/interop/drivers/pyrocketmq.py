"""Drives PyPI `rocketmq` 0.4.4 (a C++ client): pyrocketmq.py MODE NAMESRV TOPIC GROUP.

Many of them, side by side: pyrocketmq.py many NAMESRV MODE:TOPIC:GROUP[:COUNT:INTERVAL_MS],... -

MODE: produce, mixed (sends TagA and TagB in turn), rush (as fast as it goes, several at once), consume,
orderly, tags (TagB only), broadcast, pull, fails (each message fails twice), outage (everything fails for a
minute).

One JSON object a line on standard output, of many with the number of its driver (`of`); ends when standard
input closes. Found by PYTHONPATH.
"""

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.ffi import MessageModel, _CConsumeStatus

INTERVAL_S = 0.05
OUTAGE_S = 60.0
SENDING_AFTER_S = 3.0
"""Wait of consumers that broadcast before anything is sent: each of them reads only what comes after its
start."""


def sign(client: Producer | PushConsumer) -> None:
    """With the account in the environment, where there is one."""
    if "ROCKETMQ_ACCESS_KEY" in os.environ:
        keys = os.environ["ROCKETMQ_ACCESS_KEY"], os.environ["ROCKETMQ_SECRET_KEY"]
        client.set_session_credentials(*keys, "")


class Driver:
    def __init__(
        self, mode: str, namesrv: str, topic: str, group: str, end: threading.Event, of: int | None = None
    ) -> None:
        self.mode, self.namesrv, self.topic, self.group, self.end, self.of = (
            mode,
            namesrv,
            topic,
            group,
            end,
            of,
        )
        self.count: float = float("inf")
        self.interval_s = INTERVAL_S

    def run(self) -> None:
        if self.mode in ("produce", "mixed"):
            self.produce()
        elif self.mode == "rush":
            self.rush()
        elif self.mode == "pull":
            self.pull()
        else:
            self.consume()

    def say(self, **event: object) -> None:
        line = json.dumps({"ms": int(time.time() * 1000), "of": self.of, **event})
        os.write(1, (line + "\n").encode())  # whole lines, also from the C++ client's threads

    def producer(self) -> Producer:
        producer = Producer(self.group)
        producer.set_namesrv_addr(self.namesrv)
        sign(producer)
        producer.start()
        self.say(event="ready")
        return producer

    def produce(self) -> None:
        producer = self.producer()
        seq = 0
        while seq < self.count and not self.end.is_set():
            message = Message(self.topic)
            message.set_keys(f"key-{seq}")
            message.set_tags("TagB" if self.mode == "mixed" and seq % 2 else "TagA")
            message.set_body(str(seq))
            try:
                result = producer.send_sync(message)
            except Exception as error:  # the client raises one class per C++ error code
                self.say(event="failed", seq=seq, text=str(error))
            else:
                if int(result.status) == 0:
                    self.say(event="acked", seq=seq, id=result.msg_id)
                    seq += 1
                else:
                    self.say(event="failed", seq=seq, text=str(result.status))
            self.end.wait(self.interval_s)
        self.say(event="done")
        self.end.wait()

    def rush(self) -> None:
        """Four threads, each message once: what is repeated the client repeats by itself. Counts."""
        producer = self.producer()
        counts = {"acked": 0, "failed": 0}
        lock = threading.Lock()

        def send() -> None:
            while not self.end.is_set():
                message = Message(self.topic)
                message.set_body("x")
                try:
                    ended = "acked" if int(producer.send_sync(message).status) == 0 else "failed"
                except Exception:
                    ended = "failed"
                with lock:
                    counts[ended] += 1

        for _ in range(4):
            threading.Thread(target=send, daemon=True).start()
        while not self.end.wait(1.0):
            self.say(event="rushed", **counts)

    def received(self, message: object) -> int:
        times: int = message.reconsume_times  # type: ignore[attr-defined]
        self.say(
            event="received",
            seq=int(message.body),  # type: ignore[attr-defined]
            keys=message.keys.decode(),  # type: ignore[attr-defined]
            tag=message.tags.decode(),  # type: ignore[attr-defined]
            queue=message.queue_id,  # type: ignore[attr-defined]
            offset=message.queue_offset,  # type: ignore[attr-defined]
            times=times,
        )
        return times

    def consume(self) -> None:
        model = MessageModel.BROADCASTING if self.mode == "broadcast" else MessageModel.CLUSTERING
        consumer = PushConsumer(self.group, orderly=self.mode == "orderly", message_model=model)
        consumer.set_namesrv_addr(self.namesrv)
        if self.of is not None:  # each is a client of its own
            consumer.set_instance_name(f"many{os.getpid()}_{self.of}")
        sign(consumer)
        outage_ends: list[float] = []

        def listen(_: object, handle: object) -> int:
            times = self.received(RecvMessage(handle))
            if self.mode == "outage":
                outage_ends.append(time.monotonic() + OUTAGE_S)
            later = (self.mode == "fails" and times < 2) or any(
                time.monotonic() < end for end in outage_ends[:1]
            )
            status = _CConsumeStatus.RECONSUME_LATER if later else _CConsumeStatus.CONSUME_SUCCESS
            return int(status.value)

        consumer.subscribe(self.topic, lambda message: None, "TagB" if self.mode == "tags" else "*")
        # In place of what subscribe() registered: that leaves open what a listener which raises gives back.
        consumer._register_callback(listen)
        consumer.start()
        self.say(event="ready")
        self.end.wait()

    def pull(self) -> None:
        consumer = PullConsumer(self.group)
        consumer.set_namesrv_addr(self.namesrv)
        consumer.start()
        self.say(event="ready")
        while not self.end.wait(4 * INTERVAL_S):
            try:
                for message in consumer.pull(self.topic):
                    self.received(message)
            except Exception as error:  # as in produce
                self.say(event="failed", text=str(error))


def main() -> None:
    mode, namesrv, topic, group = sys.argv[1:5]
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    if mode != "many":
        Driver(mode, namesrv, topic, group, end).run()
    sending: list[Driver] = []
    for of, each in enumerate(topic.split(",") if mode == "many" else []):
        kind, where, whose, *times = each.split(":")
        driver = Driver(kind, namesrv, where, whose, end, of)
        if times:
            driver.count, driver.interval_s = int(times[0]), int(times[1]) / 1000
            sending.append(driver)
        else:
            threading.Thread(target=driver.run, daemon=True).start()
    if sending:
        end.wait(SENDING_AFTER_S)
    for driver in sending:
        threading.Thread(target=driver.run, daemon=True).start()
    end.wait()
    if mode == "many":
        time.sleep(0.5)
    os._exit(0)  # the C++ client's destructors may hang when a broker is gone


if __name__ == "__main__":
    main()
