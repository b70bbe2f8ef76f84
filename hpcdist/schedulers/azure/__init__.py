"""The scheduler of Azure Machine Learning: runs as command jobs of a workspace."""
