"""What every role shares: configuration by environment, the session with the scheduler, health, metrics.

Import the modules by name (`roll_workers.runtime.session`); this file imports nothing, so that a role
that needs no torch, numpy or grpc does not pay for them.
"""
