"""Papers' plans, benchmarks and the demo: what a checkout has besides the installed packages."""
