"""Is the whole pool cast: on files written for it, each with what the reader must not be misled by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.probe.backends import Followed, line_of

if TYPE_CHECKING:
    from pathlib import Path

_BACKEND = """
import torch

class Backend:
    def __init__(self, model_runner):
        self.data_type = model_runner.dtype
        self.kv_type = model_runner.kv_cache_dtype
        self.token_to_kv_pool = model_runner.token_to_kv_pool

    def forward_decode(self, q, k, v, layer, forward_batch):
        pool = forward_batch.token_to_kv_pool
        {body}
"""


def backend(*lines: str) -> str:
    return _BACKEND.replace("{body}", "\n        ".join(lines))


CASTS = {
    "to the query's type": ["k = pool.get_key_buffer(layer.layer_id).to(q.dtype)  # here"],
    "through a local": ["k = pool.get_key_buffer(0)", "k = k.to(q.dtype)  # here", "run(q, k)"],
    "to an attribute": ["k = pool.get_key_buffer(0)", "run(q, k.to(self.data_type))  # here"],
    "by keyword": ["k = pool.get_key_buffer(0)", "run(q, k.to(dtype=self.data_type))  # here"],
    "like the query": ["run(q, pool.get_key_buffer(0).type_as(q))  # here"],
    "by name": ["run(q, pool.get_key_buffer(0).bfloat16())  # here"],
    "after a view": ["k = pool.get_key_buffer(0).view(-1, 1, 576)", "run(q, k[:, :, :512].to(q.dtype))  # here"],
    "of one of a pair": ["k, v = pool.get_kv_buffer(0)", "run(q, k.to(q.dtype))  # here"],
    "of one by its index": ["run(q, pool.get_kv_buffer(0)[0].to(q.dtype))  # here"],
    "of the pool's own list": ["run(q, pool.kv_buffer[layer.layer_id].to(torch.bfloat16))  # here"],
    "in a branch": ["k = pool.get_key_buffer(0)", "if k.dtype != q.dtype:", "    k = k.to(q.dtype)  # here"],
    "on an object of its own": ["run(q, self.token_to_kv_pool.get_key_buffer(0).to(q.dtype))  # here"],
    "to an alias of the type": ["kind = self.data_type", "run(q, pool.get_key_buffer(0).to(kind))  # here"],
    "in an expression": ["run(q, [one.to(q.dtype) for one in [pool.get_key_buffer(0)]])  # here"],
    "by a walrus": ["run(q, (k := pool.get_key_buffer(0)).to(q.dtype))  # here"],
    "after try": ["try:", "    k = pool.get_key_buffer(0)", "except KeyError:", "    raise", "k.to(q.dtype)  # here"],
    "of an unpacked pair": ["k, n = pool.get_key_buffer(0), 1", "run(q, k.to(q.dtype), n)  # here"],
}


@pytest.mark.parametrize("lines", CASTS.values(), ids=CASTS.keys())
def test_a_cast_of_the_whole_pool_is_found_with_its_line(tmp_path: Path, lines: list[str]) -> None:
    text = backend(*lines)
    answer, sites = Followed(tmp_path, "Backend", backend=text).pool_cast()
    assert answer.answer is True, answer.reason
    assert [(site.line, site.function, site.phases) for site in sites] == [
        (line_of(text, "# here"), "forward_decode", ["decode"])
    ]
    assert answer.at == f"{tmp_path}/engine/backend.py:{line_of(text, '# here')}"


HARMLESS = {
    "no cast": ["run(q, pool.get_key_buffer(0))"],
    "live rows by their indices": ["run(q, pool.get_key_buffer(0)[forward_batch.indices].to(q.dtype))"],
    "live rows by index_select": ["run(q, pool.get_key_buffer(0).index_select(0, live).to(q.dtype))"],
    "live rows through a local": ["k = pool.get_key_buffer(0)", "rows = k[live, :, :512]", "run(q, rows.to(q.dtype))"],
    "the first rows": ["run(q, pool.get_key_buffer(0)[:count].to(q.dtype))"],
    "to its own type": ["k = pool.get_key_buffer(0)", "run(q, k.to(k.dtype))"],
    "to its own type by an attribute": ["run(q, pool.get_key_buffer(0).to(self.kv_type))"],
    "to a device": ["run(q, pool.get_key_buffer(0).to(q.device), pool.get_key_buffer(1).to('cuda'))"],
    "the bits seen as another type": ["run(q, pool.get_key_buffer(0).view(torch.float8_e4m3fn))"],
    "of the query instead": ["run(q.to(self.kv_type), pool.get_key_buffer(0))"],
    "to the type of a query made FP8": ["q = q.to(torch.float8_e4m3fn)", "run(q, pool.get_key_buffer(0).to(q.dtype))"],
    "of lengths": ["k = pool.get_key_buffer(0)", "run(q, k, forward_batch.seq_lens.to(torch.int32), k.shape[0] * 2)"],
    "a local taken for something else": ["k = pool.get_key_buffer(0)", "run(k)", "k = new(q)", "k.to(q.dtype)"],
}


@pytest.mark.parametrize("lines", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_looks_like_it_is_not_taken_for_it(tmp_path: Path, lines: list[str]) -> None:
    answer, sites = Followed(tmp_path, "Backend", backend=backend(*lines)).pool_cast()
    assert (answer.answer, sites) == (False, []), answer.reason


UNTOLD = {
    "a type from outside": ["run(q, pool.get_key_buffer(0).to(settings.type))"],
    "a type chosen by name": ["run(q, pool.get_key_buffer(0).to(getattr(torch, layer.type_name)))"],
    "a method chosen by name": ["run(q, getattr(pool.get_key_buffer(0), layer.method)(q.dtype))"],
    "a copy into another buffer": ["layer.buffer.copy_(pool.get_key_buffer(0))"],
    "a multiplication": ["run(q, pool.get_key_buffer(0) * layer.k_scale)"],
}


@pytest.mark.parametrize("lines", UNTOLD.values(), ids=UNTOLD.keys())
def test_what_is_decided_at_run_time_cannot_be_told(tmp_path: Path, lines: list[str]) -> None:
    answer, sites = Followed(tmp_path, "Backend", backend=backend(*lines)).pool_cast()
    assert answer.answer is None
    assert [site.is_certain for site in sites] == [False]


def test_without_a_read_of_a_pool_nothing_is_claimed(tmp_path: Path) -> None:
    answer, _ = Followed(tmp_path, "Backend", backend=backend("run(q, mystery(layer))")).pool_cast()
    assert answer.answer is None
    assert "no read of a KV pool" in answer.reason


def test_helpers_are_followed_with_what_they_are_given(tmp_path: Path) -> None:
    text = """
        from engine.views import widened, paged

        class Backend:
            def _pool(self, layer):
                return self.token_to_kv_pool.get_key_buffer(layer.layer_id)

            def _run(self, q, cache):
                return kernel(q, cache.to(q.dtype))  # here

            def forward_decode(self, q, layer):
                return self._run(q, paged(self._pool(layer), 64))

            def forward_extend(self, q, layer):
                return kernel(q, widened(self._pool(layer), q.dtype))
    """
    views = """
        def paged(cache, size):
            return cache.view(-1, size, 576)

        def widened(cache, to):
            return cache.to(to)  # there
    """
    _, sites = Followed(tmp_path, "Backend", backend=text, views=views).pool_cast()
    assert [(site.file.rpartition("/")[2], site.line, site.phases) for site in sites] == [
        ("backend.py", line_of(text, "# here"), ["decode"]),
        ("views.py", line_of(views, "# there"), ["extend"]),
    ]


def test_the_cast_of_a_base_class_is_its_subclasses_too_unless_they_override_it(tmp_path: Path) -> None:
    base = """
        class Base:
            def forward_decode(self, q, layer):
                return run(q, self.pool.get_key_buffer(0).to(q.dtype))  # decode

            def forward_extend(self, q, layer):
                return run(q, self.pool.get_key_buffer(0).to(q.dtype))  # extend
    """
    backend_text = """
        from engine.base import Base

        class Inherits(Base):
            pass

        class Overrides(Base):
            def forward_decode(self, q, layer):
                return run(q, self.pool.get_key_buffer(0))

            def forward_extend(self, q, layer):
                if layer.plain:
                    return super().forward_extend(q, layer)
                return run(q, self.pool.get_key_buffer(0))
    """
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    _, inherited = Followed(folders[0], "Inherits", backend=backend_text, base=base).pool_cast()
    assert [site.line for site in inherited] == [line_of(base, "# decode"), line_of(base, "# extend")]
    answer, overridden = Followed(folders[1], "Overrides", backend=backend_text, base=base).pool_cast()
    assert [(site.line, site.phases) for site in overridden] == [(line_of(base, "# extend"), ["extend"])]
    assert answer.reason.startswith("extend:")


def test_what_must_hold_on_the_way_is_said(tmp_path: Path) -> None:
    lines = ["if not self.use_mla:", "    return 1", "else:", "    if layer.late: pool.get_key_buffer(0).to(q.dtype)"]
    _, (site,) = Followed(tmp_path, "Backend", backend=backend(*lines)).pool_cast()
    assert site.conditions == ["self.use_mla", "layer.late"]


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    text = """
        class Backend:
            def forward_decode(self, q, layer):
                return self.other(self.pool.get_key_buffer(0), q)

            def other(self, cache, q):
                return self.forward_again(cache, q) if q else cache.to(q.dtype)

            def forward_again(self, cache, q):
                return self.other(cache, q)
    """
    answer, _ = Followed(tmp_path, "Backend", backend=text).pool_cast()
    assert answer.answer is True


def test_a_pool_handed_over_as_vllm_does_is_one(tmp_path: Path) -> None:
    text = """
        class MLAImpl:
            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
                return run(q, kv_c_and_k_pe_cache.unsqueeze(2).to(q.dtype))

        class Quiet:
            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
                return run(q, kv_c_and_k_pe_cache[attn_metadata.blocks].to(q.dtype))
    """
    for name, expected in (("MLAImpl", True), ("Quiet", False)):
        folder = tmp_path / name
        folder.mkdir()
        answer, _ = Followed(folder, name, backend=text).pool_cast()
        assert answer.answer is expected
