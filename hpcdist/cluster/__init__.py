"""Cluster profiles: what a job needs to know about a cluster, and that no job file should say."""
