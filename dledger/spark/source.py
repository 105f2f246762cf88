"""Data source `dledger`: the logs of broker groups as DataFrames, from store directories or live brokers.

`spark.read.format("dledger").option("path", STORE).load()`; options are in `options`, columns in
`columns`. The views:

* `messages`: user messages, committed only; also as a stream
* `entries`: log entries of every replica, without bodies
* `queues`: first and last offset of every queue
* `index`: units of the index files
* `state`: topics, consumer groups, consumer offsets
* `scan`: rows of the audit (`audit.findings.FlatRow`). Damage is reported as rows, never as an exception.

`df.write.format("dledger")` and `writeStream` send to live brokers: `sink`.

A task reads parts of segments, of some 64 MiB in all. Driver and executors must see the stores under the
same paths.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from dledger.spark import columns, sink_options
from dledger.spark.all_views import view_of
from dledger.spark.live_queues import LiveMessagesView, LiveQueues, LiveQueuesView
from dledger.spark.live_replicas import LiveEntriesView
from dledger.spark.log_streams import DirectoryLog, DirectoryQueues
from dledger.spark.option_values import BadOption
from dledger.spark.options import Options, parse
from dledger.spark.pushdown import push
from dledger.spark.queue_source import Queues
from dledger.spark.session_warnings import warn_once
from dledger.spark.sink import BatchWriter, stream_writer
from dledger.spark.sink_brokers import check_brokers, with_topic
from dledger.spark.streaming import RefusingReader, check_release, stream_reader
from dledger.spark.versions import HAS_PUSHDOWN, Filter, session_pushes
from dledger.spark.views import EntriesView, MessagesView, QueuesView, View

NOT_PUSHED = (
    "this session does not push filters down to the source dledger: everything is read, and Spark filters it "
    "afterwards. Set spark.sql.python.filterPushdown.enabled to true (dledger.spark.session.register(spark) "
    "does it), or choose with options of the source; pushdown=false hides this hint"
)


class DledgerSource(DataSource):
    """The data source as Spark creates it. Raises BadOption (a ValueError) for wrong options, and
    audit.store_directory.StoreError for paths that cannot be read."""

    pushes = False
    """Whether the session is known to push filters down. Otherwise they are pushed if it does."""

    @classmethod
    def name(cls) -> str:
        return "dledger"

    def schema(self) -> str:
        return columns.ddl(view_of(self._parse(None)).columns)

    def reader(self, schema: object) -> DataSourceReader:
        options = self._parse("batch")
        view = view_of(options)
        if options.pushdown and isinstance(view, Narrowed):
            return PushingReader(view)
        if HAS_PUSHDOWN and "pushdown" not in options.given and isinstance(view, Narrowed):
            if session_pushes() is False:
                warn_once("not-pushed", NOT_PUSHED)
            return WillingReader(view)
        return ViewReader(view)

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        try:
            options = self._parse("stream")
        except BadOption as error:
            return RefusingReader(error)
        return stream_reader(options, queues_of(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise BadOption('mode overwrite: a topic can only be appended to: use mode("append")')
        options, columns = _sink(self.options, schema)
        return BatchWriter(with_topic(options), columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise BadOption('outputMode complete: a topic can only be appended to: use outputMode("append")')
        options, columns = _sink(self.options, schema)
        return stream_writer(with_topic(options), columns)

    def _parse(self, mode: str | None) -> Options:
        options = parse(dict(self.options), mode)
        check_release(options)  # here, so that it is an error of `load()`, which the user sees
        return options if "pushdown" in options.given else replace(options, pushdown=self.pushes)


class PushingSource(DledgerSource):
    """`DledgerSource` with pushdown by default, for sessions that have
    `spark.sql.python.filterPushdown.enabled`."""

    pushes = HAS_PUSHDOWN


def _sink(options: Mapping[str, str], schema: StructType) -> tuple[sink_options.SinkOptions, tuple[str, ...]]:
    """Return the checked options and columns of the sink. Warns once, on the driver, if the rows have no
    ids."""
    parsed = sink_options.parse(dict(options))
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    names = sink_options.check_columns(columns, parsed.topic, parsed.id_column)
    parsed = sink_options.with_ids(parsed, names)
    if parsed.ids is None and parsed.dedup_id is None:
        warnings.warn(sink_options.NO_IDS, stacklevel=1)
    if parsed.exactly_once:
        check_brokers(parsed)
    return parsed, names


Narrowed = MessagesView | EntriesView | QueuesView | LiveMessagesView | LiveEntriesView | LiveQueuesView
"""The views to which filters of the query can be pushed down."""


def queues_of(options: Options) -> Queues:
    """Return the queues that a stream with these options reads."""
    if options.servers:
        return LiveQueues(options)
    return DirectoryLog(options) if options.offset_type == "log" else DirectoryQueues(options)


class ViewReader(DataSourceReader):
    """Reader of a view: it plans tasks on the driver, and reads rows on executors. It is small and can be
    pickled."""

    def __init__(self, view: View) -> None:
        self._view = view

    def partitions(self) -> list[InputPartition]:
        return self._view.plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        return self._view.read(partition)


class PushingReader(ViewReader):
    """`ViewReader` with `pushFilters`. It is a separate class because Spark refuses a reader with
    `pushFilters` if pushdown is not enabled."""

    def __init__(self, view: Narrowed) -> None:
        super().__init__(view)
        self._narrowing = view

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        options = self._narrowing.options
        whole = options.corrupt_records == "include"
        pushed, rest = push(options.view, filters, all_rows=whole, live=bool(options.servers))
        self._view = replace(self._narrowing, pushed=pushed)
        return rest


class WillingReader(PushingReader):
    """`PushingReader` for sessions of which it is not known whether they push filters down."""

    def __init__(self, view: Narrowed) -> None:
        super().__init__(view)
        self.pushFilters = _Push(self)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "pushFilters"}


class _Push:
    """The method `pushFilters` of a `WillingReader`. Spark refuses a reader that implements the method if the
    session does not push filters down, and recognises it by `__func__`. With the attribute of the base class
    the reader is accepted there too."""

    def __init__(self, reader: WillingReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return PushingReader.pushFilters(self._reader, filters)
