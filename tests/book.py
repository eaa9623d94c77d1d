"""The book of this checkout, read once for all tests of a process that only look at it."""

from functools import cache

from app.chapters import Book, load_book


@cache
def the_book() -> Book:
    return load_book()
