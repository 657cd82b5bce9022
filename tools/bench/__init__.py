"""``make -C tools bench``: figures as ratios measured in one run, as absolute times on shared machines say little."""
