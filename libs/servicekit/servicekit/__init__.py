"""What every Hone service stands on: settings, serve, connect, errors, telemetry, identity and tokens."""

import os

# gRPC would start threads of its own in a forked child before it executes a program, and a few of a hundred children
# end there with SIGSEGV (grpc/grpc#43055). Hone forks to execute and for nothing else. gRPC reads this when it begins.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
