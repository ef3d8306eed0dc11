"""Implements paged attention with FlashInfer's append kernels, if its package is installed.

A FlashInfer wrapper plans on the host once per step and kind of layer, and runs once per layer.
Unsupported options go to a fallback backend. Names and units are those of FlashInfer 0.7.4:
window_left excludes the query's position, so it is AttentionPlan's window minus one.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kv_pool.attention.backend import AttentionBackend, AttentionOptions, AttentionPlan
from kv_pool.attention.fixed import NoFixedPlan
from kv_pool.attention.flashinfer_workspace import Workspace, workspace_bytes
from kv_pool.attention.paging import PageLayout, page_layout
from kv_pool.attention.transfer import to_device

_LONG = 5.0  # seconds; planning alone takes less than a thousandth of that
# One kernel for all batches: its schedule fits into graphs for all lengths, and a kernel that only
# long prompts use would be compiled during a request.
_BACKEND = "fa2"
_HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.float16, torch.bfloat16)

logger = logging.getLogger(__name__)


@runtime_checkable
class PagedWrapper(Protocol):
    """Declares the used part of flashinfer.BatchPrefillWithPagedKVCacheWrapper."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        **kind: Any,
    ) -> None: ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor: ...


# Takes the constructor's arguments: workspace, "NHD", and the buffers of a graph by name.
MakeWrapper = Callable[..., PagedWrapper]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Identifies a kind of layer: everything that a wrapper plans for except the pages."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    causal: bool
    sm_scale: float
    window_left: int  # -1: no window
    logits_soft_cap: float  # 0: none
    q_data_type: torch.dtype
    kv_data_type: torch.dtype

    def arguments(self, page_size: int) -> dict[str, Any]:
        names = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "causal", "sm_scale")
        rest = ("window_left", "logits_soft_cap", "q_data_type", "kv_data_type")
        return {"page_size": page_size, **{name: getattr(self, name) for name in names + rest}}

    def workspace_bytes(self, workspace: Workspace, *, rows: int = 0, sequences: int = 0) -> int:
        """rows, sequences: of a graph; 0 for a plan of one step."""
        return workspace_bytes(
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim_qk,
            multiprocessors=workspace.multiprocessors,
            fixed_rows=rows,
            fixed_sequences=sequences,
        )


class FlashInferAttention:
    """Implements AttentionBackend and FixedBackend. Each model needs its own instance.

    Models with equal layers would overwrite each other's plans.
    """

    name = "flashinfer"
    fixed_plan_bytes = 8 * 1024 * 1024  # a wrapper's memory for its schedule
    follows_device_lens = False  # its plans divide the keys of exact lengths

    def __init__(
        self,
        *,
        page_size: int,
        workspace: Workspace,
        make_wrapper: MakeWrapper,
        fallback: AttentionBackend,
    ) -> None:
        """workspace: may be shared with backends that run before or after.
        fallback: runs float32, attention sinks and unsupported head widths."""
        self.page_size = page_size
        self._device = workspace.device
        self._make_wrapper = make_wrapper
        self._fallback = fallback
        self._workspace = workspace
        self._wrappers: dict[_Kind, _Planned] = {}
        self._reasons: set[str] = set()

    def plan(
        self,
        *,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        causal: bool,
    ) -> "FlashInferPlan":
        def plan_fallback() -> AttentionPlan:
            return self._fallback.plan(
                query_lens=query_lens, kv_lens=kv_lens, page_tables=page_tables, causal=causal
            )

        layout = page_layout(
            query_lens=query_lens,
            kv_lens=kv_lens,
            page_tables=page_tables,
            page_size=self.page_size,
        )
        return FlashInferPlan(self, layout, causal=causal, plan_fallback=plan_fallback)

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> "FlashInferFixedPlan":
        return FlashInferFixedPlan(
            num_sequences=num_sequences,
            query_len=query_len,
            max_pages=max_pages,
            page_size=self.page_size,
            causal=causal,
            workspace=self._workspace,
            make_wrapper=self._make_wrapper,
        )

    def planned(self, kind: _Kind, layout: PageLayout) -> PagedWrapper:
        """Plan a layout for a kind of layer; return its wrapper."""
        if kind not in self._wrappers:
            memory = self._workspace.at_least(kind.workspace_bytes(self._workspace))
            wrapper = self._make_wrapper(memory, "NHD", backend=_BACKEND)
            self._wrappers[kind] = _Planned(wrapper, self.page_size, self._device)
        planned = self._wrappers[kind]
        planned.plan(kind, layout)
        return planned.wrapper

    def note(self, reason: str) -> None:
        """Log each reason for the fallback once."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            logger.info("attention by %s instead of flashinfer: %s", self._fallback.name, reason)


class FlashInferPlan:
    """Attends for one batch. The first layer of each kind plans its wrapper."""

    def __init__(
        self,
        backend: FlashInferAttention,
        layout: PageLayout,
        *,
        causal: bool,
        plan_fallback: Callable[[], AttentionPlan],
    ) -> None:
        self._backend = backend
        self._layout = layout
        self._causal = causal
        self._plan_fallback = plan_fallback
        self._fallback: AttentionPlan | None = None
        self._wrappers: dict[_Kind, PagedWrapper] = {}

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend."""
        reason = _why_not(query, keys, values, options)
        if reason is not None:
            self._backend.note(reason)
            self._fallback = self._fallback or self._plan_fallback()
            return self._fallback.attend(query, keys, values, options)
        kind = _kind(query, keys, self._causal, options)
        if kind not in self._wrappers:
            self._wrappers[kind] = self._backend.planned(kind, self._layout)
        return _run(self._wrappers[kind], query, keys, values, self._backend.page_size)


class FlashInferFixedPlan:
    """Implements FixedPlan: wrappers over buffers whose addresses never change."""

    def __init__(
        self,
        *,
        num_sequences: int,
        query_len: int,
        max_pages: int,
        page_size: int,
        causal: bool,
        workspace: Workspace,
        make_wrapper: MakeWrapper,
    ) -> None:
        self._query_lens = [query_len] * num_sequences
        self._page_size = page_size
        self._causal = causal
        self._workspace = workspace
        self._make_wrapper = make_wrapper
        self._wrappers: dict[_Kind, _Planned] = {}
        self._layout: PageLayout | None = None

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=workspace.device)

        self._buffers = {
            "qo_indptr_buf": buffer(num_sequences + 1),
            "paged_kv_indptr_buf": buffer(num_sequences + 1),
            "paged_kv_indices_buf": buffer(num_sequences * max_pages),
            "paged_kv_last_page_len_buf": buffer(num_sequences),
        }

    def update(
        self,
        *,
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        least_kv_lens: Sequence[int] | None = None,
    ) -> None:
        """See FixedPlan.update: every wrapper plans again, into the same buffers."""
        assert least_kv_lens is None, "flashinfer plans exact lengths"
        self._layout = page_layout(
            query_lens=self._query_lens,
            kv_lens=kv_lens,
            page_tables=page_tables,
            page_size=self._page_size,
        )
        for kind, planned in self._wrappers.items():
            planned.plan(kind, self._layout)

    def set_kv_lens(self, kv_lens: Int[Tensor, "B"]) -> None:
        """Raise NoFixedPlan: see FlashInferAttention.follows_device_lens."""
        raise NoFixedPlan("flashinfer plans exact lengths")

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend. Raises NoFixedPlan for options without a kernel."""
        reason = _why_not(query, keys, values, options)
        if reason is not None:
            raise NoFixedPlan(f"flashinfer has no kernel for {reason}")
        assert self._layout is not None, "attend before update"
        kind = _kind(query, keys, self._causal, options)
        if kind not in self._wrappers:
            wanted = kind.workspace_bytes(
                self._workspace, rows=sum(self._query_lens), sequences=len(self._query_lens)
            )
            wrapper = self._make_wrapper(
                self._workspace.at_least(wanted),
                "NHD",
                use_cuda_graph=True,
                backend=_BACKEND,
                **self._buffers,
            )
            self._wrappers[kind] = _Planned(
                wrapper, self._page_size, self._workspace.device, query_len=self._query_lens[0]
            )
            self._wrappers[kind].plan(kind, self._layout)
        return _run(self._wrappers[kind].wrapper, query, keys, values, self._page_size)


class _Planned:
    """Plans a wrapper, after the device has copied the wrapper's previous plan."""

    def __init__(
        self,
        wrapper: PagedWrapper,
        page_size: int,
        device: torch.device,
        *,
        query_len: int | None = None,
    ) -> None:
        """query_len: of all sequences in all plans, if a graph fixes it."""
        self.wrapper = wrapper
        self._page_size = page_size
        self._device = device
        # With equal query lengths, a graph's plan reserves fewer and smaller tiles.
        self._uniform_q_len = query_len
        # The wrapper copies its plan from one pinned buffer: wait before overwriting it.
        self._fetched: Any = None
        if device.type == "cuda":
            self._fetched = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, kind: _Kind, layout: PageLayout) -> None:
        if self._fetched is not None:
            self._fetched.synchronize()
        with _logging_builds(kind):
            self._plan(kind, layout)
        if self._fetched is not None:
            self._fetched.record()

    def _plan(self, kind: _Kind, layout: PageLayout) -> None:
        self.wrapper.plan(
            torch.from_numpy(layout.qo_indptr),
            torch.from_numpy(layout.kv_indptr),
            # From the host the wrapper would copy it synchronously; the other arrays it reads on
            # the host.
            to_device(layout.kv_indices, self._device),
            torch.from_numpy(layout.last_page_lens),
            uniform_q_len=self._uniform_q_len,
            **kind.arguments(self._page_size),
        )


@contextmanager
def _logging_builds(kind: _Kind) -> Iterator[None]:
    """Log a long plan: the first of a kind compiles its kernels unless they are cached on disk."""
    begun = time.perf_counter()
    yield
    seconds = time.perf_counter() - begun
    if seconds >= _LONG:
        what = f"heads of {kind.head_dim_qk} in {kind.q_data_type}"
        logger.info("flashinfer built its kernels for %s in %.0f s", what, seconds)


def _kind(query: Tensor, keys: Tensor, causal: bool, options: AttentionOptions) -> _Kind:
    return _Kind(
        num_qo_heads=query.shape[1],
        num_kv_heads=keys.shape[1],
        head_dim_qk=query.shape[2],
        causal=causal,
        sm_scale=options.scale,
        window_left=-1 if options.window is None else options.window - 1,
        logits_soft_cap=options.softcap or 0.0,
        q_data_type=query.dtype,
        kv_data_type=keys.dtype,
    )


def _why_not(query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions) -> str | None:
    if options.sinks is not None:
        return "attention sinks"
    if query.dtype not in _DTYPES or keys.dtype != query.dtype:
        return f"{query.dtype} over {keys.dtype}"
    if keys.shape[2] not in _HEAD_DIMS or values.shape[2] != keys.shape[2]:
        return f"heads of {keys.shape[2]} and {values.shape[2]}"
    return None


def _run(
    wrapper: PagedWrapper, query: Tensor, keys: Tensor, values: Tensor, page_size: int
) -> Tensor:
    pages = tuple(x.view(-1, page_size, *x.shape[1:]) for x in (keys, values))
    query = query.contiguous()
    # Without `out` the wrapper fills its result with zeros first, in a kernel of each layer.
    return wrapper.run(query, (pages[0], pages[1]), out=torch.empty_like(query))


def load_wrapper() -> MakeWrapper:
    """Import FlashInfer's wrapper. Raises ImportError if it is not installed."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    make: MakeWrapper = BatchPrefillWithPagedKVCacheWrapper
    return make
