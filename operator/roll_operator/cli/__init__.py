"""`roll …`, the same program as `kubectl roll …`. Each command imports what it needs when it runs."""

from roll_operator.cli.app import main

__all__ = ["main"]
