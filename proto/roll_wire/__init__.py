"""The contract between processes: messages, services and their generated stubs."""

# Rises whenever a worker and a scheduler of different releases would misunderstand each other.
PROTOCOL = 3
