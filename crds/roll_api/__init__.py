"""The contract with the user: the RLJob models and the CRD made from them."""
