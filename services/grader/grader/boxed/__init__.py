"""Programs that run inside a grading box: standard library only, any Python from 3.10 on, sent there as source."""
