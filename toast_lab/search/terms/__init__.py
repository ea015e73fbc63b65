"""The priced terms of a plan: what each small choice costs by itself, at the evaluator's prices.

Takes: a problem. Gives: rows of ops and values that are split alike, the menu of choices of each
row, and the seconds of each choice: computing an op, leaving its results, bringing a value to a
use. Integer programs, descent and the lower bound add these up, and price nothing else. Start
reading at ``priced_terms.py``; ``op_prices.py`` has the kernels. Not in the paper.
"""
