"""The program that a GPU runs: compiled without one, read, counted, and its seconds estimated."""
