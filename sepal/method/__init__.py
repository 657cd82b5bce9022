"""What an author of a method sees: interface, base classes, hooks, means, tensors."""
