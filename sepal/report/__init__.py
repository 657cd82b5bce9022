"""What people see of runs and comparisons: tables, sentences, progress, and pages with figures (an extra)."""
