"""The sample scheduler: follows every sample of one job from prompt to gradient.

Read `lifecycle` first (what can happen to a sample), then `core` (one turn of the scheduler).
"""
