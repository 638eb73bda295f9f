FACTOR = 3


def triple(x):
    return FACTOR * x
