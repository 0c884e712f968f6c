"""How a NatsBus behaves; every field has a usable default."""

from dataclasses import dataclass

from eventbus.outgoing import MAX_EVENT_BYTES

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BusOptions:
    """Limits and times of one connection to the bus."""

    stream_max_bytes: int | None = None
    """Room of the EVENTS stream. None leaves an existing stream as it is and makes a new one with 4 GiB."""
    blobs_max_bytes: int | None = None
    """Room of the blob bucket. None leaves it as it is; a new one has no limit of its own."""
    duplicate_window_seconds: float = 600.0
    """How long the stream knows an event id; must exceed publish_deadline_seconds."""
    claims_ttl_seconds: float = 30 * 86400.0
    """How long a claim that nobody writes any more is kept; 0 keeps it until its run is purged. Must exceed every
    lease, and the time for which requests may be delivered again: a request without its claim could run again."""
    replicas: int = 1
    """Copies that a NATS cluster keeps of everything; 3 in production."""
    publish_window: int = 256
    """Events that may wait for their acknowledgement at once."""
    publish_deadline_seconds: float = 60.0
    """How long publish, claims and blobs keep trying before they say Unavailable."""
    request_timeout_seconds: float = 5.0
    """How long one try waits for the server's answer."""
    max_event_bytes: int = MAX_EVENT_BYTES
    """Largest envelope."""
    fetch_seconds: float = 5.0
    """How long one pull lingers on the server."""
    drain_seconds: float = 10.0
    """How long running handlers may take to finish once a consumer stops."""
    replicas_in_flight: int = 1024
    """max_ack_pending of a durable is this many times max_in_flight: events that all replicas together hold or let wait
    (RetryLater). It is no working limit: what runs at once is bounded by what each process pulls."""
    spare_deliveries: int = 1000
    """Deliveries beyond max_deliver that the server grants, for RetryLater; then its advisory ends the event."""
    reconnect_wait_seconds: float = 0.25
    """Pause between tries to reach the server."""
