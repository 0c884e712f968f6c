"""The tool gateway: lists the tools that agents may call, and runs their calls once each."""
