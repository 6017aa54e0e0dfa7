"""The contract between processes: messages, services and their generated stubs."""
