"""One run of a deployment through what a year brings."""
