"""`python -m roll_operator.cli`."""

from roll_operator.cli.app import main

if __name__ == "__main__":
    main()
