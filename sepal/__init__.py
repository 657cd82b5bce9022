"""The machinery of personalized, sparse federated learning. It knows no method."""

__version__ = "0.1.0"
