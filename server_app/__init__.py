"""The Flower ServerApp: hosts the server halves and writes the run directory."""
