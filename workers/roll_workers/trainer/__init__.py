"""The trainer: turns recorded batches into weights. Open `loop.py` first."""
