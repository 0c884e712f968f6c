"""The console: archive of events and spans, audit of runs, and the page people look at."""
