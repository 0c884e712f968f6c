"""What every Hone service stands on: settings, serve, connect, errors, telemetry, identity and tokens."""
