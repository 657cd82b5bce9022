"""``make -C tools gpu``: what is tried and measured on the day a GPU is there; writes tools/results/gpu.md."""
