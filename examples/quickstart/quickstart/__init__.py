"""Flower's PyTorch quickstart in shape, with a method of Sepal."""
