"""The policy's side of a rollout: samples come as tasks, are decoded together, and go back as actions.

`loop.py` is the role, top to bottom; `engines/` is what decodes.
"""
