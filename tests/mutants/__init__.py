"""The guards of the effect protocol, each removed in turn in the real code: the suite must notice."""
