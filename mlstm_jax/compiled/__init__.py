"""Compile the program that a GPU would run, without a GPU; analyse it and estimate its seconds."""
