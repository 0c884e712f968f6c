"""The in-process twin of the bus, by noun: log, durable, stores. Nothing outlives the process."""
