"""The sandbox service: every isolated environment from creation to destruction."""
