"""The processes that hold the privileges: spawner, keeper and init. Standard library only, no threads, no secrets."""
