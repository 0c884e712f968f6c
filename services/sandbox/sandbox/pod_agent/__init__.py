"""The process in each pod that runs commands and moves files; standard library only, carried in as one file."""
