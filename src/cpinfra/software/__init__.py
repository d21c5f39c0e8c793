"""The target interpreter: the Python in which the user's torch and model live."""
