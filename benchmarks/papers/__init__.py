"""Items of the five papers: where each is implemented, how to check it, and its result.

There is one file per paper; `python -m benchmarks.papers` writes PAPERS.md from them.
"""
