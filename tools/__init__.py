"""What a checkout has besides the installed packages: benchmarks, chaos, load, the demo, the documentation site."""
