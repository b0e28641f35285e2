"""Bases of several methods: what they keep, send or train in the same way. None is a method by itself."""
