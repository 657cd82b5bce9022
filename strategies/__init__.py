"""The methods. ``from sepal.strategies.fedpse import FedPSE`` imports one as a Flower Strategy; see ``registry``."""
