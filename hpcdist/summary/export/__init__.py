"""Runs in the tools that track experiments: TensorBoard's event files, and MLflow.

`series` reads what a run recorded as series of points, and its job as flat keys, both the same for
every tool; `tensorboard` and `mlflow` write them. Only these two import the packages,
which are extras.
"""
