"""How much of a figure is the processor's: every method with all its defaults, under each kind of arithmetic."""
