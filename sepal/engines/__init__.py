"""Engines that run a federation: in process with workers, or with Flower's processes."""
