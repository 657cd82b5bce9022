"""Which weights are kept: selection, layer budgets, schedules of prune and regrow. NumPy only."""
