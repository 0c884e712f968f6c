"""What the grader asks of other services and of people's own endpoints, one file each."""
