"""How large a run's files and processes become."""
