"""Load: many light clients on one SuperLink, over Flower's own gRPC connection."""
