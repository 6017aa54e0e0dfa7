"""Who may speak to a job's scheduler, and how both sides know each other.

A job has one key and one self-signed certificate; whoever connects trusts exactly the certificates in the
job's bundle. Whoever calls shows a service-account token that the cluster signed for one audience: the job's
workers or the operator, each for this job alone. Nothing here asks the API server anything.
"""
