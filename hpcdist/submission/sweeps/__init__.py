"""Sweeps: one job submitted at several points, each point a run of its own.

One way through: points (text to values), then loading (a checked and planned job per point), then
jobs (which runs share an array), then submitting or running here; folder is what a sweep leaves.
"""
