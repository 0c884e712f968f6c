"""A cluster in a process: API server over HTTP, a node that runs pods as processes, the agent-sandbox controller."""
