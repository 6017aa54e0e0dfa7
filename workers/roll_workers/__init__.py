"""The data plane: what runs in the pod of a role."""
