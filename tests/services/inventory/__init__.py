"""Tests of the inventory, over real HTTP on real databases."""
