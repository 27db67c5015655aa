"""The verification of the inventory's records: is everything that is stored what the contract says?"""
