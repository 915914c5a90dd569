"""Times :func:`stepscope.paged_mla.mla_decode` beside its peers on one GPU: ``python -m stepscope.paged_mla.bench``."""
