"""The environment role: where prompts come from and actions go. `loop.py` is where to start."""
