"""`python -m edgewise`, so that torchrun and machines without the script can run it."""

from edgewise.cli import main

if __name__ == "__main__":
    main()
