"""The kinds of models: a file has the options of one, and what it says of itself."""
