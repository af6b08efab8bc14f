"""The five papers, item by item: where each lives, how to see it, and its numbers.

A file a paper; `python -m benchmarks.papers` writes PAPERS.md from them.
"""
