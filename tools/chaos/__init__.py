"""Chaos: kills and stops processes of a deployed run at random; the result must be that of the uninterrupted run."""
