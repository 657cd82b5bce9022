"""What operators see of a process: figures for Prometheus, its health, and its log."""
