"""A plan's runs as jobs of a cluster (``docs/clusters.md``)."""
