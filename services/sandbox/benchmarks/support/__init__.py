"""What the benchmarks of the sandbox service share; scripts beside this folder import it by its place."""
