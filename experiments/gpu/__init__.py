"""``make gpu``: what is tried and measured on the day a GPU is there; writes docs/results/gpu.md."""
