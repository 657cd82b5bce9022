"""One small federation in Flower, fluke, pfl-research, PFLlib and Sepal: which give the same weights again?"""
