"""The control plane: planner, controller, sample scheduler, command line."""
