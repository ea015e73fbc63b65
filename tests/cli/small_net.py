"""A small model with its mesh, as arguments of a command."""

# Small enough to search in a moment; every dim divides by 4 and by 2.
NET = [
    "attention",
    "--set",
    "sequence=16",
    "d_model=8",
    "key=8",
    "value=8",
    "--mesh",
    "data=2,model=2",
]
