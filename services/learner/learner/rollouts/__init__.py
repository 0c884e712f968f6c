"""Which rollouts a step asks for, and what the event log says became of them."""
