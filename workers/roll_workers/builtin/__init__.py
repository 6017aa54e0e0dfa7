"""Models and data sets that are made in place, so that every example runs unchanged anywhere."""
