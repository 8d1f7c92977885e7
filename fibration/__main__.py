"""`python -m fibration`."""

from fibration.cli.main import main

if __name__ == "__main__":
    main()
