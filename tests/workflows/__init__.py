"""Tests of the workflows: purity, policies, perform under a real server, replay."""
