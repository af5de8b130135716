"""The two parts of `make test`, as options of pytest, for scripts that run the tests."""

PARTS = (
    (
        "--jaxtyping-packages=edgewise,beartype.beartype",  # checks the shapes in signatures
        *("-m", "not unhooked and not long"),
    ),
    ("-m", "unhooked and not long"),
)
