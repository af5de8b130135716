"""Counters for Prometheus. No text, and no address of a client."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Of one server: nothing is shared by the process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            *("edgewise_requests", "Requests, by status; 499: the client was gone."),
            *(("path", "status"),),
            registry=registry,
        )
        self.request_seconds = Histogram(
            *("edgewise_request_seconds", "From a request's headers to the end of its answer."),
            *(("path",),),
            buckets=SECONDS,
            registry=registry,
        )
        self.waiting_requests = Gauge(
            "edgewise_waiting_requests", "Requests that are being answered.", registry=registry
        )
        self.waiting_sentences = Gauge(
            "edgewise_waiting_sentences", "Sentences not yet computed.", registry=registry
        )
        self.batch_items = Histogram(
            *("edgewise_batch_items", "Sentences computed together."),
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        self.batch_seconds = Histogram(
            *("edgewise_batch_seconds", "Time of computing them."),
            buckets=SECONDS,
            registry=registry,
        )
        self.dropped = Counter(
            *("edgewise_dropped", "Sentences not computed, or not to their end: nobody waits."),
            registry=registry,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
