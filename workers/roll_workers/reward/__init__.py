"""The reward role: judges answers. `loop.py` is where to start, `scorers/` is what may judge."""
