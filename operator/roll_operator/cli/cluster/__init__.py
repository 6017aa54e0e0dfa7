"""`roll submit`, and `roll status|logs|samples` of a job on a cluster. The client is imported when it is needed."""
