"""One rule a file: its docstring explains it, its constants are the thresholds, `check` is the code."""
