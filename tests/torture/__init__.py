"""Everything that may go wrong, tried many times: ``python -m tests.torture``.

Every case is a module with one `case.Case`, which yields the outcome of one try after the other.
`answering` holds what counts as a failure of a command, `mutation` what is done to files.
"""
