"""What benchmarks and tests of the kinds that run code share; scripts beside this folder import it by its place."""
