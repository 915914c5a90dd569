"""Traces from live servers: preflight, traffic, profile, collect; `live.py` is the only place that chains them."""
