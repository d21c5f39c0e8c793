"""What hardware is there and which of it may be used."""
