"""`python -m fibration`."""

from fibration.cli import main

if __name__ == "__main__":
    main()
