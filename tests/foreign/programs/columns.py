"""A ParquetWriter and an HDF5 file that nobody closes."""

import os

import h5py
import numpy
import pyarrow
import pyarrow.parquet

rank = os.environ["RANK"]
schema = pyarrow.schema([("step", pyarrow.int64()), ("loss", pyarrow.float64())])
writer = pyarrow.parquet.ParquetWriter(f"steps-{rank}.parquet", schema)
writer.write_table(pyarrow.table({"step": [0, 1], "loss": [1.0, 0.5]}, schema=schema))
table = h5py.File(f"steps-{rank}.h5", "w")
table.create_dataset("loss", data=numpy.arange(1000) / 7)
table.attrs["rank"] = rank
