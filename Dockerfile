# The server in a container.
#
#   docker build -t dspark .
#   docker run --rm -p 8000:8000 -v dspark-cache:/cache dspark serve --config demo
#
# For an NVIDIA GPU (and then `docker run --gpus all ...`):
#
#   docker build -t dspark-cuda --build-arg DEVICE=cuda .
#
# Attention on a GPU is then Triton's. FlashInfer (extra `cuda`) compiles its kernels with CUDA's nvcc at
# their first use, which this image does not have.
#
# The package index may offer torch for CUDA only, which is several gigabytes larger than a CPU
# needs. An index that carries the CPU build can be named with --build-arg TORCH_INDEX_URL=...

ARG PYTHON=3.11

# -- build: a virtual environment with everything in it ---------------------------------------
FROM python:${PYTHON}-slim AS build
ARG DEVICE=cpu
ARG TORCH_INDEX_URL=
WORKDIR /src
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

# torch first, in a layer of its own: it is the largest and changes least.
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt \
    ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} \
    "torch==$(sed -n 's/^torch==//p' constraints.txt)"

COPY pyproject.toml README.md LICENSE ./
COPY kv_pool ./kv_pool
COPY draft ./draft
COPY engine ./engine
COPY server ./server
COPY dspark ./dspark
# dspark/configs is a link to it; the packages then hold the configs and the draft of the demo pair.
COPY configs ./configs
RUN extras=demo,quantized; \
    if [ "$DEVICE" = cuda ]; then extras=$extras,triton; fi; \
    pip install --no-cache-dir --constraint constraints.txt ".[$extras]"

# -- run: that environment, and an ordinary user -----------------------------------------------
# A compiler, for the native kernels are made for the CPU that they run on, at the first start.
FROM python:${PYTHON}-slim
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 dspark && mkdir /cache && chown dspark /cache
COPY --from=build /opt/venv /opt/venv
WORKDIR /app

# The cache holds the demo target, what comes from a model hub, and kernels that were compiled for a GPU.
ENV PATH=/opt/venv/bin:$PATH \
    DSPARK_CACHE=/cache \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    DSPARK__SERVER__HOST=0.0.0.0 \
    DSPARK__SERVER__PORT=8000 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /cache
EXPOSE 8000
USER dspark

# The first start fetches and converts a model before it answers. Port and certificate are those of the
# environment; where a flag or a file names them, give `docker run` a --health-cmd of its own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import os, ssl, urllib.request as r; tls = os.environ.get('DSPARK__SERVER__SSL_CERTFILE'); r.urlopen(f\"http{'s' if tls else ''}://127.0.0.1:{os.environ['DSPARK__SERVER__PORT']}/health\", timeout=3, context=ssl._create_unverified_context() if tls else None)"]

ENTRYPOINT ["dspark"]
CMD ["--help"]
