"""Functions as jobs: what `hpcdist.submit(function)` sends, and what its ranks send back.

describe names a function and finds what it imports; call is the function with its arguments, as a
private file of the run (private opens no other); outcome is what each rank returned or raised.
"""
