"""``make bench``: figures as ratios measured in one run, because absolute times on shared machines say little."""
