"""Examples that work: what `hone init` and the demo write."""
