"""Interoperability: where hospitals' data differ, how sure that is, what it probably means, and what to ask.

Two kinds of evidence. `evidence`: profiles of the columns (site/profile.py), tested with a stated false-alarm rate.
`marks`: the affine layers that iFedAvg learned, with the paper's own rule. Nothing here reads a row.
"""
