"""Other servers on the same machine: how they are started, and a program that compares them."""
