"""A Spark driver that writes to three topics with `exactlyOnce`, and may be killed at any time.

python writing_driver.py MASTER NAMESRV DIRECTORY

It does what the files of the directory say: DIRECTORY/stream/*.txt are the rows of a stream, each file in
DIRECTORY/batch those of one batch write, and the file `stop` ends the driver. A third stream copies a topic.
Started again it goes on with the checkpoints, and begins each batch write again that had not ended.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dledger.spark.session import session

FROM, COPIED, STREAMED, WRITTEN = "From", "Copied", "Streamed", "Written"
"""A topic that is read, and the topics that are written: by a stream from it, by one from files, by batch
writes."""
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
SMALL_BATCHES = {"maxBatchBytes": str(6000 + 700 * (os.getpid() % 7))}
"""A dozen rows in a request, so that a task takes long enough to be killed in the middle. A driver that is
started again makes other batches of the same rows."""
LOOK_S = 0.05


def main(master: str, namesrv: str, directory: Path) -> None:
    """Write until the file `stop` is there."""
    spark = session("writing", master, SMALL, short=True)

    def sink(writer, topic: str, id_column: str = ""):  # type: ignore[no-untyped-def]
        more = {"idColumn": id_column} if id_column else {}
        options = {"servers": namesrv, "topic": topic, "exactlyOnce": "true", **SMALL_BATCHES, **more}
        return writer.format("dledger").options(**options)

    def numbered(lines):  # type: ignore[no-untyped-def]
        """Rows on both executors."""
        rows = lines.selectExpr("value", "split(value, ' ')[0] number")
        return rows.repartition(2, "number")

    copied = spark.readStream.format("dledger").options(
        servers=namesrv, subscribe=FROM, includeId="true", startingOffsets="earliest"
    )
    lines = spark.readStream.format("text").load(str(directory / "stream"))
    queries = [
        sink(frame.writeStream, topic, id_column)
        .option("checkpointLocation", str(directory / f"check-{topic}"))
        .start()
        for frame, topic, id_column in (
            (copied.load().select("value", "id"), COPIED, ""),
            (numbered(lines), STREAMED, "number"),
        )
    ]
    print("started", flush=True)
    while not (directory / "stop").exists():
        for path in sorted((directory / "batch").glob("*.txt")):
            frame = numbered(spark.read.text(str(path)))
            sink(frame.write, WRITTEN, "number").mode("append").save()
            path.rename(path.with_suffix(".done"))
        for query in queries:
            if error := query.exception():
                raise error
        time.sleep(LOOK_S)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
