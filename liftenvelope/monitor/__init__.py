"""Live state of a JetStream account or a Liftbridge cluster, for ``liftenvelope monitor`` and ``top``.

A sampler asks the servers and returns a :class:`Snapshot`: streams, consumers, groups, and what could not be
read. ``liftenvelope.monitor.jetstream.JetStreamSampler`` needs a
:class:`~liftenvelope.jetstream.JetStream`, and ``liftenvelope.monitor.liftbridge.LiftbridgeSampler`` an
open :class:`~liftenvelope.client.Client`. :class:`Collector` takes samples at an interval, reconnects, and
keeps a :class:`History`: rates, and bounded series to plot. :func:`alerts` returns what needs attention.
``History`` and ``alerts`` are sans-io.

Example::

    @asynccontextmanager
    async def connect():
        async with JetStream(nc) as js:
            yield JetStreamSampler(js)

    collector = Collector(connect, kind="jetstream", interval=1.0)
    task = asyncio.create_task(collector.run())
    version = 0
    while True:
        version = await collector.next(version)  # the newest sample, never a queue of them
        history = collector.history
        for name, stream in history.latest.streams.items():
            print(name, stream.end, history.rate("stream", name))
        for alert in alerts(history.latest):
            print(alert.severity, alert.name, alert.text)
"""

from liftenvelope.monitor._alerts import MonitorAlert, alerts
from liftenvelope.monitor._collector import Collector, Sampler
from liftenvelope.monitor._generations import Generation, GenerationHistory
from liftenvelope.monitor._history import History, Series, SeriesKey
from liftenvelope.monitor._limits import MAX_SUBJECTS, MonitorLimits
from liftenvelope.monitor._snapshots import (
    ConsumerSample,
    GatewayFigures,
    GatewaySample,
    GroupSample,
    PartitionSample,
    PinSample,
    SampleFault,
    Snapshot,
    StorageSample,
    StreamSample,
)
from liftenvelope.monitor.groups import GroupPartition

__all__ = [
    "MAX_SUBJECTS",
    "Collector",
    "ConsumerSample",
    "GatewayFigures",
    "GatewaySample",
    "Generation",
    "GenerationHistory",
    "GroupPartition",
    "GroupSample",
    "History",
    "MonitorAlert",
    "MonitorLimits",
    "PartitionSample",
    "PinSample",
    "SampleFault",
    "Sampler",
    "Series",
    "SeriesKey",
    "Snapshot",
    "StorageSample",
    "StreamSample",
    "alerts",
]
