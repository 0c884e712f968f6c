"""Typed publish and consume over the one EVENTS stream.

Import from the files: `eventbus.bus` (the contract), `eventbus.nats_bus`, `eventbus.memory_bus` (the two
implementations), `eventbus.envelope`, `eventbus.ids`, `eventbus.claims`, `eventbus.blobs`, `eventbus.errors`.
"""
