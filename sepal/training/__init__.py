"""The client: training loop, evaluation, and storage of client states."""
