"""The Flower ClientApp: hosts the client halves and owns their persistent state."""
