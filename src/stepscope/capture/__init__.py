"""Traces from live servers and from plain programs."""
