"""The training-checkpoint store: what a training run needs for its next update, whole or not at all."""
