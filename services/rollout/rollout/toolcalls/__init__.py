"""Parsers of tool calls in sampled text, one file per format."""
