"""Carries out plans: looks at what is, writes the record, acts, and looks again."""
