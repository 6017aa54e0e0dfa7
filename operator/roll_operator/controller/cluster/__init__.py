"""The operator of a cluster: watches, store, queue, reconcile, leader."""
