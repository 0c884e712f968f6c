"""The NATS side of the bus, by noun: connection, streams, publisher, pulls, consumer, reader, claims, blobs."""
