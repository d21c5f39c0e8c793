"""What is done on the machine itself: the runs and what goes on beside them. Standard library only."""
