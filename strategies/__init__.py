"""The methods. ``from strategies.fedpse import FedPSE`` gives one as a Flower Strategy; see ``registry`` for all."""
