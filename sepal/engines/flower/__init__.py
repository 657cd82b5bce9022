"""Runs federations with Flower's processes: a simulation, or a deployment over gRPC."""
