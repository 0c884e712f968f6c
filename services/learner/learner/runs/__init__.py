"""Runs on disk and what happens to them: started, stopped, resumed, rolled back, exported."""
