"""What carries out training, torch and all: a thread, or processes of its own."""
