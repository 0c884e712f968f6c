"""The hone command and the local launcher behind `hone up`."""
