"""What layers keep for the backward pass, by price and by compilers."""
